"""Which throughput figures of a log are of a server at work, and their mean."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

SILENCE = 3.0
"""Idle is a silence of so many usual intervals between two lines."""
SHORTEST_SILENCE_S = 2.0


@dataclass(frozen=True)
class Sample:
    """One printed throughput [tokens/s] over the time since the one before."""

    tokens_per_s: float
    running: int
    waiting: int
    seconds: float | None
    """When it was printed; None without a time."""
    silence_s: float = 0.0
    """Longest time without any line of a batch since the sample before [s]."""
    fresh: bool = False
    """Whether the log shows that the server had nothing to do just before."""


def _gaps(samples: Sequence[Sample]) -> list[float]:
    """Returns the time [s] that each sample covers; 0 for the first, and where there are no times."""
    times = [sample.seconds for sample in samples]
    return [0.0] * bool(samples) + [
        max(0.0, now - before) if now is not None and before is not None else 0.0 for before, now in pairwise(times)
    ]


def generated(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    """Returns the rate [tokens/s] of each sample and the time [s] that it covers."""
    return [(sample.tokens_per_s, gap) for sample, gap in zip(samples, _gaps(samples), strict=True)]


def steady(samples: Sequence[Sample]) -> list[Sample]:
    """Returns the samples of a server at work all the time.

    The first after idle is not: its tokens are divided by a time that the idle gap is part of. Nor is one without
    tokens.
    """
    return [sample for sample, keep in zip(samples, _kept(samples), strict=True) if keep]


def mean_rate(samples: Sequence[Sample]) -> float:
    """Returns the mean tokens/s of the steady samples, weighted by the time each covers, equally without times."""
    kept = [pair for pair, keep in zip(generated(samples), _kept(samples), strict=True) if keep]
    time = sum(gap for _, gap in kept)
    return sum(rate * gap for rate, gap in kept) / time if time else fmean(rate for rate, _ in kept)


def _kept(samples: Sequence[Sample]) -> list[bool]:
    gaps = [gap for gap in _gaps(samples) if gap > 0]
    limit = max(SHORTEST_SILENCE_S, SILENCE * median(gaps)) if gaps else SHORTEST_SILENCE_S
    return [
        index > 0 and sample.tokens_per_s > 0 and sample.running > 0 and not sample.fresh and sample.silence_s <= limit
        for index, sample in enumerate(samples)
    ]
