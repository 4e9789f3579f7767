"""The event simulation, in SimPy: stages, links, the scheduler's host, micro-batches and users."""

from pipesim.simulation.simulator import Detail, simulate

__all__ = ["Detail", "simulate"]
