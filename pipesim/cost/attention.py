"""Decode attention over the MLA latent, as a split-KV kernel runs it."""

from math import ceil

from pipesim.ops import LatentDecode, Work
from pipesim.profiles.hardware import Efficiency


def latent_decode_work(op: LatentDecode, multiprocessors: int, head_block: int) -> Work:
    """Returns the work of the attention itself.

    Rows (heads, for every token that is verified) run in blocks (of 16 in SGLang
    layers/attention/triton_ops/decode_attention.py), and every block reads the KV again; while the batch leaves
    multiprocessors idle those reads meet in the L2 cache.
    """
    blocks = ceil(op.rows / head_block)
    tokens = op.requests * op.kv_tokens
    flops = 2.0 * blocks * head_block * (2 * op.latent + op.rope) * tokens
    rereads = (blocks - 1) / (1.0 + (multiprocessors / op.requests) ** 2)
    return Work(flops, op.bytes_per_element * (op.latent + op.rope) * tokens * (1.0 + rereads))


def partial_result_bytes(op: LatentDecode, efficiency: Efficiency) -> float:
    """Returns the traffic [B] of the splits' partial results: FP32 value and one sum, written and read."""
    return 2.0 * 4 * op.requests * op.rows * efficiency.kv_splits * (op.latent + 1)


def split_tokens(op: LatentDecode, efficiency: Efficiency, multiprocessors: int) -> float:
    """Returns the KV tokens that one multiprocessor walks in sequence: those of a split, or of one in every wave.

    SGLang's Triton kernel makes 8 splits (`--triton-attention-num-kv-splits`) and vLLM's one of up to 512 tokens, then
    more, up to 64; the lengths are seen in the latency tables, not documented.
    """
    tokens = min(op.kv_tokens / efficiency.kv_splits, efficiency.longest_split)
    tokens = max(tokens, op.kv_tokens / efficiency.most_splits) if efficiency.most_splits else tokens
    if not efficiency.waves or not tokens:
        return tokens
    blocks = op.requests * ceil(op.rows / efficiency.head_block) * ceil(op.kv_tokens / tokens)
    return tokens * ceil(blocks / multiprocessors)
