"""What the busiest of several expert-parallel ranks holds, when popularity falls on contiguous expert ids at random.

Engines give rank r the ids r·n to (r+1)·n − 1 (SGLang layers/moe/ep_moe, vLLM `determine_expert_map`, placement
"linear"), and ids say nothing of popularity: every deal of E experts, n to a rank, is equally likely.
"""

from functools import lru_cache
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]

DEALS = 256
"""Random deals that an expected maximum over uneven experts is averaged over; always the same ones."""


def busiest_distinct(distinct: float, experts: int, ranks: int) -> float:
    """Returns the expected largest number of touched experts on one of `ranks` ranks.

    Of K touched experts the ranks hold (D_1, …, D_R), multivariate hypergeometric with n = E/R places each, whatever
    the popularities. With X_r independent Binomial(n, K/E) this is (X_1, …, X_R) given ΣX = K, so

        E max D = Σ_m 1 − [z^K] (Σ_{j≤m} P(X = j)·z^j)^R / P(ΣX = K)

    exactly; a fractional K lies on the line between its neighbours. n where all are touched, 1 where one is.
    """
    if ranks == 1:
        return distinct
    below = min(int(distinct), experts - 1)
    low, high = (_busiest_of(touched, experts, ranks) for touched in (below, below + 1))
    return low + (distinct - below) * (high - low)


@lru_cache(maxsize=8192)
def _busiest_of(touched: int, experts: int, ranks: int) -> float:
    places = experts // ranks
    if touched in {0, experts}:
        return float(touched // ranks)
    chances = _binomial(places, touched / experts)
    together = _power(chances, ranks, touched)
    expected = 0.0
    for most in range(places):
        reached = _power(chances[: most + 1], ranks, touched) / together
        expected += 1.0 - reached
        if reached > 1.0 - 1e-12:
            break
    return float(expected)


def _binomial(n: int, chance: float) -> Floats:
    """Returns P(X = 0), …, P(X = n) of a binomial X."""
    factors = np.arange(n, 0, -1) / np.arange(1, n + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(factors))])
    k = np.arange(n + 1)
    return np.asarray(np.exp(logs + k * np.log(chance) + (n - k) * np.log1p(-chance)))


def _power(chances: Floats, times: int, at: int) -> float:
    """Returns the chance that `times` draws from `chances` sum to `at`."""
    result = np.ones(1)
    for _ in range(times):
        result = np.convolve(result, chances)[: at + 1]
    return float(result[at]) if at < len(result) else 0.0


def busiest_surplus(touched: Floats, blocks: Floats, ranks: int) -> float:
    """Returns by how much the largest number of row blocks on a rank exceeds its largest number of touched experts.

    `touched` is the probability of each expert to be touched and `blocks` its expected row blocks. Both maxima are
    averaged over the same deals, in each of which experts are touched at random; 0 where no expert has a second block.
    """
    if not (blocks > touched + 1e-9).any():
        return 0.0
    order, chance = _deals(len(touched))
    drawn = (chance < touched[order]).astype(np.float64)
    rows = drawn * (blocks / np.maximum(touched, 1e-300))[order]
    by_rank = (DEALS, ranks, len(touched) // ranks)
    most_blocks = rows.reshape(by_rank).sum(axis=2).max(axis=1)
    most_touched = drawn.reshape(by_rank).sum(axis=2).max(axis=1)
    return float((most_blocks - most_touched).mean())


@lru_cache(maxsize=8)
def _deals(experts: int) -> tuple[np.ndarray[Any, np.dtype[np.int64]], Floats]:
    generator = np.random.default_rng(experts)
    order = generator.permuted(np.tile(np.arange(experts), (DEALS, 1)), axis=1)
    return order, generator.random((DEALS, experts))
