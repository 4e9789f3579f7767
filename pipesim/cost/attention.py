"""Decode attention over the MLA latent, as a split-KV kernel runs it."""

from math import ceil

from pipesim.ops import LatentDecode, Work

HEADS_PER_BLOCK = 16
"""Query heads of one thread block; fewer are padded (SGLang layers/attention/triton_ops/decode_attention.py)."""
KV_SPLITS = 8
"""Most sequential splits of one request's KV (SGLang `--triton-attention-num-kv-splits`)."""
LONGEST_SPLIT = 1024
"""KV tokens of a split beyond which further parallelism hides its length (seen in the latency tables)."""


def latent_decode_work(op: LatentDecode, multiprocessors: int) -> Work:
    """Returns the work of the attention itself.

    Heads run in blocks of 16, and every block of heads reads the KV again; while the batch leaves multiprocessors idle
    those reads meet in the L2 cache.
    """
    blocks = ceil(op.heads / HEADS_PER_BLOCK)
    tokens = op.requests * op.kv_tokens
    flops = 2.0 * blocks * HEADS_PER_BLOCK * (2 * op.latent + op.rope) * tokens
    rereads = (blocks - 1) / (1.0 + (multiprocessors / op.requests) ** 2)
    return Work(flops, op.bytes_per_element * (op.latent + op.rope) * tokens * (1.0 + rereads))


def partial_result_bytes(op: LatentDecode) -> float:
    """Returns the traffic [B] of the splits' partial results: FP32 value and one sum, written and read."""
    return 2.0 * 4 * op.requests * op.heads * KV_SPLITS * (op.latent + 1)


def split_tokens(op: LatentDecode) -> float:
    """Returns the KV tokens that one split walks in sequence."""
    return min(op.kv_tokens / KV_SPLITS, LONGEST_SPLIT)
