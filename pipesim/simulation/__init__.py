"""The event simulation, in SimPy: stages, links, the scheduler's host, micro-batches and users."""

from pipesim.simulation.simulator import Detail, simulate, simulate_together

__all__ = ["Detail", "simulate", "simulate_together"]
