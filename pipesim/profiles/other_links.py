"""What if the GPUs of a box had other links: all that moves bytes, scaled by one ratio, and labelled as a what-if."""

from typing import TypeVar

from pipesim.errors import UsageError
from pipesim.profiles.base import Source
from pipesim.profiles.hardware import HardwareProfile
from pipesim.units import parse_quantity

WHAT_IF = "what-if"
"""Name of the source of links that nobody has measured."""

Box = TypeVar("Box", bound=HardwareProfile)


def with_link(box: Box, bandwidth: str | None, latency: str | None) -> Box:
    """Returns a box with other links; see `HardwareProfile.with_link`."""
    links = box.peer_links
    faster = _ratio("bandwidth", bandwidth, "B/s", links.same_group_bandwidth)
    longer = _ratio("latency", latency, "s", links.launch)
    said = " and ".join(given for given in (bandwidth, latency) if given is not None)
    if not said:
        return box
    source = Source(
        basis="datasheet",
        text=f"what if links were {said}: those of {box.name} with bandwidths x {faster:.3g} and latencies x "
        f"{longer:.3g}; not measured",
    )
    scaled = box.with_links_scaled(faster)
    links = scaled.peer_links.model_copy(
        update={
            "launch": links.launch * longer,
            "staged_launch": links.staged_launch * longer,
            "source": WHAT_IF,
        }
    )
    return scaled.model_copy(
        update={
            "name": f"{box.name}-with-{said.replace(' and ', '-').replace(' ', '')}",
            "description": f"{box.description}; what if its links were {said}",
            "peer_links": links,
            "collectives": tuple(
                curve.scaled(latency=longer).model_copy(update={"source": WHAT_IF}) for curve in scaled.collectives
            ),
            "sources": {**box.sources, WHAT_IF: source},
        }
    )


def _ratio(name: str, given: str | None, unit: str, now: float) -> float:
    if given is None:
        return 1.0
    value = parse_quantity(given, unit)
    if not value:
        raise UsageError(name, given, "a quantity above 0")
    return value / now
