"""The share of a GPU that an engine takes: as stated, by default, or the largest that is safe. Rules by version."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, TypeVar

from pipesim.deployment import Deployment
from pipesim.engine_settings import EngineSettings

MARGIN = 2.0 * 2**30
"""Memory [B] that the largest safe share leaves free beside what is known to be needed: fragments, kernels' modules,
growth of the libraries' buffers. A choice, stated wherever such a share is assumed; not measured."""

Rules = TypeVar("Rules")


def by_version(table: Sequence[tuple[tuple[int, ...], Rules]], settings: EngineSettings) -> Rules:
    """Returns the rules of the version that runs: the last ones not newer than it; the newest where it is not known."""
    parts = _numbers(settings.version or "")
    known = [rules for since, rules in table if not parts or since <= parts]
    return known[-1] if known else table[0][1]


@lru_cache
def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


class MemoryShare(NamedTuple):
    """An engine's flag for the share of memory that it takes, and how it is chosen."""

    field: str
    """Field of `EngineSettings`."""
    default: Callable[[Deployment], float]
    safe: Callable[[Deployment], float]
    """The largest that leaves room for all else, and `MARGIN`."""

    @property
    def flag(self) -> str:
        """The flag's name."""
        return f"--{self.field.replace('_', '-')}"

    def stated(self, settings: EngineSettings) -> float | None:
        """Returns what a person stated."""
        share: float | None = getattr(settings, self.field)
        return share

    def of(self, deployment: Deployment) -> float:
        """Returns the share that a deployment runs with: as settled, else as stated, else the engine's default."""
        if deployment.memory_share is not None:
            return deployment.memory_share
        stated = self.stated(deployment.engine)
        return self.default(deployment) if stated is None else stated

    def settled(self, deployment: Deployment, capacity: Callable[[Deployment], int], needed: int) -> Deployment:
        """Returns a deployment with its share: the engine's default unless that holds too few tokens.

        Then it is the largest safe one, and `memory_note` says so. What a person stated is taken as it is.
        """
        given = replace(deployment, memory_share=self.of(deployment))
        if self.stated(deployment.engine) is not None or (held := capacity(given)) >= needed:
            return given
        larger = replace(deployment, memory_share=self.safe(deployment))
        if (larger.memory_share or 0.0) <= self.of(given):
            return given
        fails = f"leaves {held:,} tokens of KV cache, too few for this load" if held > 0 else "would not start"
        note = (
            f"The engine's own default, {self.flag} {self.of(given):.4g}, {fails}: {self.of(larger):.4g} is assumed, "
            f"the largest that keeps {MARGIN / 2**30:.3g} GiB free beside activations and graphs."
        )
        return replace(larger, memory_note=note)
