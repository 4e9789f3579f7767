"""Dynamic chunking: chunks of a long prompt shrink as it grows, so that each takes the first stage about as long.

SGLang managers/scheduler_pp_mixin.py `ChunkSizePredictor` and `profile_and_init_predictor` (0.5.10.post1).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np

from pipesim.workload import Batch, PrefillChunk

LENGTHS = 128
"""Prompts that are timed at start-up: the first of them is not used."""
LONGEST_IN_CHUNKS = 1.25
ALIGNMENT = 64
"""Chunks are multiples of this many tokens: KV pages are smaller."""
MARGIN = 100
"""Tokens of the model's context that are left free behind a chunk."""


@dataclass(frozen=True)
class ChunkSizer:
    """The model f(l) = a·l² + b·l + c of a prompt's time on the first stage, and the chunk size that it gives."""

    a: float
    b: float
    base: int
    """The chunk size that is set [tokens]."""
    smooth: float
    """Share of the way from the base to the size that the model gives."""
    most: int
    """Most prompt tokens of one launch."""
    positions: int
    """The model's context [tokens]."""

    def equal_time(self, history: int) -> float:
        """Returns x with f(h + x) − f(h) = f(base) − f(0), h being the tokens before the chunk."""
        slope = 2.0 * self.a * history + self.b
        target = self.a * self.base**2 + self.b * self.base
        return (sqrt(slope * slope + 4.0 * self.a * target) - slope) / (2.0 * self.a)

    def next_chunk(self, history: int) -> int:
        """Returns the tokens of the next chunk: smoothed, at least a quarter of the base, aligned, within limits."""
        smoothed = self.base + self.smooth * (self.equal_time(history) - self.base)
        size = max(int(smoothed), self.base // 4) // ALIGNMENT * ALIGNMENT
        size = min(max(size, ALIGNMENT), self.most, self.positions - history - MARGIN) // ALIGNMENT * ALIGNMENT
        return size if size >= ALIGNMENT else self.base


def fitted(
    first_stage: Callable[[Batch], int], *, base: int, smooth: float, most: int, positions: int
) -> ChunkSizer | None:
    """Returns the sizer that the engine fits at start-up; None where time does not grow faster than length."""
    step = base * LONGEST_IN_CHUNKS // LENGTHS
    lengths = [int(base * LONGEST_IN_CHUNKS - index * step) for index in range(1, LENGTHS)]
    lengths = [length for length in lengths if length > 0]
    times = [first_stage(PrefillChunk(n, 1, n * (n + 1) // 2, 1, 0, absorbed=False)) for n in lengths]
    powers = np.vander(np.array(lengths, dtype=np.float64), 3)
    (a, b, _), *_ = np.linalg.lstsq(powers, np.array(times, dtype=np.float64), rcond=None)
    if a <= 0:
        return None
    return ChunkSizer(float(a), max(0.0, float(b)), base, smooth, most, positions)
