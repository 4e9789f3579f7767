"""How many experts a batch touches and how many rows they compute: this decides PP against TP."""

from collections.abc import Sequence
from functools import lru_cache
from math import ceil

import numpy as np

from pipesim.cost.placement import busiest_distinct, busiest_surplus
from pipesim.ops import Experts, Work

Probabilities = np.ndarray[tuple[int], np.dtype[np.float64]]

BLOCK_ROWS = (8, 16, 32, 48, 64)
"""Row blocks of the Marlin MoE kernel (SGLang layers/moe/fused_moe_triton/fused_marlin_moe.py)."""


@lru_cache(maxsize=64)
def expert_probabilities(experts: int, top_k: int, skew: float) -> Probabilities:
    """Returns the probability of each expert to be among a token's top_k; they sum to top_k.

    Proportional to rank^−skew and at most 1; what a capped expert cannot take goes to the others in proportion.
    """
    weights = np.arange(1, experts + 1, dtype=np.float64) ** -skew
    probabilities = np.zeros(experts)
    free = np.ones(experts, dtype=bool)
    while True:
        share = (top_k - np.count_nonzero(~free)) / weights[free].sum() * weights[free]
        probabilities[free] = np.minimum(share, 1.0)
        over = free & (probabilities >= 1.0)
        if not over.any() or free.sum() == over.sum():
            return probabilities
        free &= ~over


def distinct_experts(tokens: float, experts: int, top_k: int, skew: float) -> float:
    """Returns the expected distinct experts that `tokens` independent tokens touch: Σ 1 − (1 − p_e)^tokens."""
    missed = (1.0 - expert_probabilities(experts, top_k, skew)) ** tokens
    return float(experts - missed.sum())


def block_rows(tokens: float, experts: int, top_k: int) -> int:
    """Returns the rows of one block: the smallest whose blocks would be less than 0.9 full on average, else 64.

    `experts` are those of the rank, over which the kernel spreads the rows of all tokens (fused_marlin_moe.py).
    """
    for rows in BLOCK_ROWS:
        if tokens * top_k / experts / rows < 0.9:
            return rows
    return BLOCK_ROWS[-1]


def row_blocks(tokens: float, experts: int, top_k: int, skew: float) -> float:
    """Returns the expected number of row blocks, every expert's rows padded to whole blocks.

    With n tokens on an expert spread over many residues, the mean of ceil(n / block) is n/block + (1 − 1/block)/2
    where the expert is touched, and never less than the probability that it is.
    """
    _, blocks = _per_expert(tokens, experts, top_k, skew, block_rows(tokens, experts, top_k))
    return float(blocks.sum())


def _per_expert(
    tokens: float, experts: int, top_k: int, skew: float, block: int
) -> tuple[Probabilities, Probabilities]:
    """Returns for each expert the probability to be touched, and its expected row blocks of `block` rows."""
    probabilities = expert_probabilities(experts, top_k, skew)
    touched = 1.0 - (1.0 - probabilities) ** tokens
    return touched, np.maximum(touched, tokens * probabilities / block + touched * (1.0 - 1.0 / block) / 2.0)


@lru_cache(maxsize=8192)
def expert_work(op: Experts, weight_reread: float) -> Work:
    """Returns the work of the two GEMMs over the routed experts of one layer on one rank.

    Bytes follow distinct experts, each read again in part for every further row block; arithmetic follows padded rows.
    Padding rows of a captured graph all take one route: they add at most top_k experts that no real token touched, with
    whole blocks there, and fill up blocks that real rows have begun elsewhere.
    With expert parallelism the rank is the busiest one, which the others wait for at the AllReduce.
    """
    distinct = distinct_experts(op.tokens, op.experts, op.top_k, op.routing_skew)
    block = block_rows(op.tokens + op.padding_tokens, op.experts // op.ranks, op.top_k)
    touched, blocks = _per_expert(op.tokens, op.experts, op.top_k, op.routing_skew, block)
    surplus = float(blocks.sum()) - distinct
    if op.padding_tokens:
        fresh = op.top_k * (1.0 - distinct / op.experts)
        merged = (op.top_k - fresh) * op.padding_tokens / block
        distinct, surplus = distinct + fresh, surplus + merged + fresh * (ceil(op.padding_tokens / block) - 1)
    if op.ranks > 1:
        distinct = busiest_distinct(distinct, op.experts, op.ranks)
        surplus = busiest_surplus(touched, blocks, op.ranks)
    return _work(op, distinct, distinct + max(0.0, surplus), weight_reread)


def counted_expert_work(op: Experts, rows_per_expert: Sequence[int], weight_reread: float) -> Work:
    """Returns the work of `expert_work` where the rows of every expert are known, as in a measured kernel."""
    rows = np.asarray(rows_per_expert)
    blocks = np.ceil(rows / block_rows(op.tokens, op.experts, op.top_k)).sum()
    return _work(op, float(np.count_nonzero(rows)), float(blocks), weight_reread)


def _work(op: Experts, distinct: float, blocks: float, weight_reread: float) -> Work:
    flops = (
        2.0
        * op.weights_per_expert
        * blocks
        * block_rows(op.tokens + op.padding_tokens, op.experts // op.ranks, op.top_k)
    )
    reads = distinct + weight_reread * (blocks - distinct)
    return Work(flops, reads * op.weights_per_expert * op.bytes_per_weight)


def activation_bytes(op: Experts) -> float:
    """Returns the traffic [B] of the kernels before, between and after the GEMMs; it overlaps with neither."""
    return (op.tokens + op.padding_tokens) * op.bytes_per_token
