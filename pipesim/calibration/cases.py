"""From measured kernels to the work that pipesim prices: what is fitted is what is priced."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from pipesim.cost.attention import latent_decode_work, partial_result_bytes, split_tokens
from pipesim.cost.experts import activation_bytes, counted_expert_work
from pipesim.cost.roofline import roofline_seconds
from pipesim.families.latent import absorbed_prefill_work, expanded_prefill_work
from pipesim.importers import STACKS
from pipesim.importers import kernel_tables as kernels
from pipesim.importers.kernel_tables import AbsorbRow, GemmRow, LatentRow, MoeRow, Table
from pipesim.ops import Experts, LatentDecode, Work
from pipesim.profiles.hardware import Efficiency, Gpu
from pipesim.profiles.model import STORAGE_BYTES

Array = np.ndarray[tuple[int], np.dtype[np.float64]]

LATENT, ROPE, NOPE, VALUE = 512, 64, 128, 128
"""MLA dimensions of DeepSeek-V3 and of the Kimi K2 family, which the tables are measured at."""
HIDDEN, Q_RANK = 7168, 1536
"""Of DeepSeek-V3, whose attention blocks are measured."""
ABSORBED_KERNELS = frozenset({"triton", "flash_attention"})
"""Kernels of the tables' context_mla rows that attend to the latent itself."""
EXPANDED_MODULE = "FLASH_ATTN"
"""Rows of vLLM's whole blocks that expand keys and values; short prompts go through the decode kernels."""
SMALL_IN_BLOCK = 4
"""Norms, rotary embedding and KV write of a block."""
HEADS = (8, 16, 32, 64)
"""Heads on a rank of the decode rows used."""
SHORTEST, LONGEST = 64, 131072
"""KV lengths of the decode rows used."""
FEW_KV_BYTES = 8e6
"""KV that takes some microseconds to read from anywhere."""
COLD = f"colder than L2 or below {FEW_KV_BYTES / 1e6:.0f} MB"
FEW_EXPERT_BYTES = 16e6
"""Weights of the experts that a small call reads in some microseconds from anywhere."""
BLANK = Efficiency.model_validate({"compute": 1.0, "memory": 1.0, "floor": "0 s", "fit_error": 0.0, "source": ""})
"""An entry to fill in."""
TOKEN_BANDS = (1, 32, 128, 512, 2048)
LENGTH_BANDS = (1, 512, 2048, 8192, 32768)


@dataclass(frozen=True)
class Cases:
    """Measured kernels of one class: their work, and the constants of their form that are not fitted."""

    kernel: str
    """Key of the hardware profile's efficiency table, "@" and the stack behind it where it is not the default."""
    table: Table
    rows: str
    """Which rows of the table, for a person."""
    flops: Array
    bytes: Array
    serial_bytes: Array
    """Traffic that overlaps with nothing [B]."""
    split_tokens: Array
    seconds: Array
    sizes: Array
    """Rows or tokens of a call; KV tokens of a request for attention: what is left out together."""
    bands: tuple[int, ...]
    form: dict[str, float] = field(default_factory=dict)
    """Fixed fields of Efficiency: weight_reread, the split rule."""
    rate: str = "bf16"
    known_floor: float | None = None
    """The floor [s] where it is not fitted."""
    ceiling: float = 1.0
    """Largest memory efficiency."""

    def __len__(self) -> int:
        return len(self.seconds)


def make_cases(
    kernel: str,
    table: Table,
    rows: str,
    works: Sequence[Work],
    measured: Sequence[tuple[float, float]],
    bands: tuple[int, ...],
) -> Cases:
    """Returns cases of plain roofline kernels; `measured` holds (size, seconds) of each."""
    work = np.array(works, dtype=np.float64).reshape(-1, 2)
    size, seconds = np.array(measured, dtype=np.float64).reshape(-1, 2).T
    none = np.zeros(len(works))
    return Cases(kernel, table, rows, work[:, 0], work[:, 1], none, none, seconds, size, bands)


def gemm_cases(system: str, storage: str, dtypes: Sequence[str]) -> list[Cases]:
    """Returns GEMMs with weights colder than the L2 cache, in the first of the number formats that is measured."""
    table = kernels.find_table(system, "gemm", "gemm", STACKS[:1])
    found: Sequence[GemmRow] = ()
    for dtype in dtypes:
        found = found or (kernels.read_gemm(table.path, dtype) if table else ())
    warm, element = kernels.warm_bytes(system), STORAGE_BYTES[storage]
    rows = [row for row in found if element * row.n * row.k > warm and row.m <= 8192]
    if table is None or not rows:
        return []
    works = [Work(2.0 * row.m * row.n * row.k, element * row.n * row.k + 2.0 * row.m * (row.n + row.k)) for row in rows]
    text = f"{storage}, weights above {warm / 1e6:.0f} MB (colder than L2), m 1 to 8192"
    cases = make_cases(f"gemm_{storage}", table, text, works, [(row.m, row.seconds) for row in rows], TOKEN_BANDS)
    return [replace(cases, rate=_rate(storage))]


def expert_cases(system: str, gpu: Gpu, storage: str, stack: str) -> list[Cases]:
    """Returns routed experts that read more than the L2 cache, or little: with weights read once, and per row block.

    The little show what a call takes at least; between, weights stay in L2 from one timed call to the next. Rows that
    would read their weights faster than the memory's clock allows are left out: from some 32 tokens on, rows of
    balanced routing take no longer than a part of the experts that they are said to touch.
    """
    table = kernels.find_table(system, "moe", "moe", [stack])
    dtype, wanted, text = MOE_ROWS[storage]
    l2, fastest, impossible = kernels.l2_bytes(system), gpu.memory_bandwidth * gpu.most_memory, 0
    rows = []
    for row in kernels.read_moe(table.path, dtype) if table else ():
        op = experts_op(row, storage)
        size = op.weights_per_expert * op.bytes_per_weight * np.count_nonzero(collector_rows(row))
        if wanted(row) and not FEW_EXPERT_BYTES < size <= l2:
            impossible += int(size > fastest * row.seconds)
            rows += [(row, op)] if size <= fastest * row.seconds else []
    if table is None or not rows:
        return []
    kernel = f"moe_{storage}" if stack == STACKS[0] else f"moe_{storage}@{stack}"
    text = f"{storage}, {text}, TP 1 to 8, three routings, weights above {l2 / 2**20:.0f} MiB or below 16 MB"
    text += f", less {impossible:,} faster than the memory" if impossible else ""
    candidates = []
    for reread in (0.0, 1.0):
        works = [counted_expert_work(op, collector_rows(row), reread) for row, op in rows]
        cases = make_cases(kernel, table, text, works, [(row.tokens, row.seconds) for row, _ in rows], TOKEN_BANDS)
        serial = np.array([activation_bytes(op) for _, op in rows])
        candidates.append(replace(cases, serial_bytes=serial, form={"weight_reread": reread}, rate=_rate(storage)))
    return candidates


def decode_cases(system: str, gpu: Gpu, ceiling: float) -> list[Cases]:
    """Returns decode attention kernels of the default stack; TensorRT-LLM's does not split the KV."""
    table = kernels.find_table(system, "mla", "generation_mla", STACKS[:1])
    rows = kernels.read_latent(table.path) if table else ()
    chosen = [row for row in rows if row.heads in HEADS and SHORTEST <= row.kv_tokens <= LONGEST and _cold(row, system)]
    if table is None or not chosen:
        return []
    text = f"BF16 KV of {SHORTEST} to {LONGEST} tokens, {COLD}, {HEADS[0]} to {HEADS[-1]} heads"
    return [
        replace(latent_cases("mla_decode", table, text, chosen, gpu, form), ceiling=ceiling) for form in SPLIT_RULES
    ]


def _cold(row: LatentRow, system: str) -> bool:
    """Whether the KV is too large to stay in the L2 cache between timed calls, or so small that it does not matter."""
    size = row.requests * row.kv_tokens * (LATENT + ROPE) * row.element_bytes
    return size > kernels.l2_bytes(system) or size < FEW_KV_BYTES


def module_decode_cases(system: str, gpu: Gpu, stack: str, floor: float, ceiling: float) -> list[Cases]:
    """Returns decode attention inside whole blocks: the block's time less that at the shortest KV, plus a floor [s]."""
    table = kernels.find_table(system, "mla", "mla_generation_module", [stack])
    rows = kernels.read_latent(table.path) if table else ()
    base: dict[tuple[int, int], LatentRow] = {}
    for row in sorted(rows, key=lambda row: -row.kv_tokens):
        base[row.heads, row.requests] = row
    chosen = []
    for row in rows:
        shortest = base[row.heads, row.requests]
        extra = row.seconds - shortest.seconds
        inside = (
            row.heads in HEADS
            and row.requests <= 256
            and SHORTEST <= row.kv_tokens <= LONGEST + 1
            and _cold(row, system)
        )
        if inside and shortest.kv_tokens <= 4 and extra > 0:
            chosen.append(row._replace(seconds=extra + floor))
    if table is None or not chosen:
        return []
    text = (
        f"whole blocks with BF16 KV of {SHORTEST} to {LONGEST} tokens, {COLD}, less those of 3 tokens, to 256 requests"
    )
    kernel = f"mla_decode@{stack}"
    return [
        replace(latent_cases(kernel, table, text, chosen, gpu, form), ceiling=ceiling, known_floor=floor)
        for form in SPLIT_RULES
    ]


def prefill_cases(system: str) -> list[Cases]:
    """Returns prefill attention kernels without a prefix, from 128 tokens, in the form that the table's kernel has.

    SGLang's Triton and FlashAttention rows time attention to the latent itself, 576 and 512 dimensions a head; those of
    TensorRT-LLM's kernel time expanded keys and values. The other form would give rates of a fifth of what such kernels
    reach, or above the peak.
    """
    table = kernels.find_table(system, "mla", "context_mla", (STACKS[0], STACKS[2]))
    rows = [row for row in (kernels.read_latent(table.path) if table else ()) if row.new_tokens >= 128]
    rows = [row for row in rows if row.heads in HEADS]
    if table is None or not rows:
        return []
    absorbed = rows[0].kernel in ABSORBED_KERNELS
    work = absorbed_prefill_work if absorbed else expanded_prefill_work
    dims = (LATENT, ROPE) if absorbed else (NOPE + ROPE, VALUE)
    form = f"absorbed, kernel {rows[0].kernel}" if absorbed else "keys and values expanded"
    text = f"prompts of 128 tokens and more, {HEADS[0]} to {HEADS[-1]} heads, {form}"
    return [_prefill("mla_prefill_absorbed" if absorbed else "mla_prefill", table, text, rows, work, dims)]


def module_prefill_cases(system: str, gpu: Gpu, gemm: dict[str, float], small_kernel: float) -> list[Cases]:
    """Returns expanded attention inside whole blocks: the block's time less that of its products, as pipesim has them.

    From 2,048 tokens, since in shorter prompts little of a block is attention, and where it is a third or more.
    """
    table = kernels.find_table(system, "mla", "mla_context_module", STACKS[1:2])
    rows = [row for row in (kernels.read_latent(table.path) if table else ()) if row.kernel == EXPANDED_MODULE]
    rows = [row for row in rows if row.heads in HEADS and row.new_tokens >= 2048]
    if table is None or not rows:
        return []
    products = np.array([_products_seconds(row, gpu, gemm) for row in rows]) + SMALL_IN_BLOCK * small_kernel
    rest = [(row, row.seconds - float(other)) for row, other in zip(rows, products, strict=True)]
    rows = [row._replace(seconds=left) for row, left in rest if left > row.seconds / 3.0]
    text = f"whole blocks of 2048 tokens and more less their products, {HEADS[0]} to {HEADS[-1]} heads, expanded"
    dims = (NOPE + ROPE, VALUE)
    return [_prefill(f"mla_prefill@{STACKS[1]}", table, text, rows, expanded_prefill_work, dims)] if rows else []


def _products_seconds(row: LatentRow, gpu: Gpu, gemm: dict[str, float]) -> float:
    """Returns the time [s] of the four products of a block (families/latent.py) by the constants of cold GEMMs."""
    m, h = row.requests * row.new_tokens, row.heads
    shapes = (
        (Q_RANK + LATENT + ROPE, HIDDEN),
        (h * (NOPE + ROPE), Q_RANK),
        (h * (NOPE + VALUE), LATENT),
        (HIDDEN, h * VALUE),
    )
    efficiency = BLANK.model_copy(update=gemm)
    works = [Work(2.0 * m * n * k, 2.0 * n * k + 2.0 * m * (n + k)) for n, k in shapes]
    return sum(roofline_seconds(work, gpu, efficiency)[0] for work in works)


def _prefill(
    kernel: str,
    table: Table,
    text: str,
    rows: Sequence[LatentRow],
    work: Callable[[int, int, int, float, float, float], Work],
    dims: tuple[int, int],
) -> Cases:
    works = []
    for row in rows:
        tokens = row.requests * row.new_tokens
        works.append(work(row.heads, *dims, tokens, tokens * (row.new_tokens + 1) / 2, tokens))
    return make_cases(kernel, table, text, works, [(row.new_tokens, row.seconds) for row in rows], LENGTH_BANDS)


def absorb_cases(system: str) -> list[Cases]:
    """Returns the two products of absorbed attention, most of them warm in the L2 cache."""
    table = kernels.find_table(system, "mla_bmm", "mla_bmm", (STACKS[0], STACKS[2]))
    rows = kernels.read_absorb(table.path) if table else ()
    if table is None or not rows:
        return []
    cases = make_cases(
        "mla_absorb",
        table,
        "both products",
        [absorb_work(row) for row in rows],
        [(row.tokens, row.seconds) for row in rows],
        TOKEN_BANDS,
    )
    return [replace(cases, ceiling=4.0)]


def absorb_work(row: AbsorbRow) -> Work:
    """Returns the work of one product as pipesim prices it: weights, and no activations."""
    weights = float(row.heads * LATENT * NOPE)
    return Work(2.0 * row.tokens * weights, 2.0 * weights)


def experts_op(row: MoeRow, storage: str) -> Experts:
    """Returns a measured row as the operation that pipesim prices."""
    columns = row.intermediate / row.tp
    return Experts(
        name="routed_experts",
        kernel=f"moe_{storage}",
        tokens=row.tokens,
        padding_tokens=0,
        experts=row.experts,
        top_k=row.top_k,
        routing_skew=0.0,
        weights_per_expert=3.0 * row.hidden * columns,
        bytes_per_weight=STORAGE_BYTES[storage],
        bytes_per_token=2.0 * row.hidden + row.top_k * (6.0 * row.hidden + 12.0 * columns),
        launches=6,
    )


def latent_op(row: LatentRow) -> LatentDecode:
    """Returns a measured row as the operation that pipesim prices."""
    return LatentDecode(row.requests, row.kv_tokens, row.heads, LATENT, ROPE, row.element_bytes)


def collector_rows(row: MoeRow) -> tuple[int, ...]:
    """Returns the rows of every expert as the collector of the tables deals them out."""
    return _dealt(row.tokens * row.top_k, 0.8 * row.tokens, row.experts, row.power)


@lru_cache(maxsize=4096)
def _dealt(rows: int, most: float, experts: int, power: float | None) -> tuple[int, ...]:
    """Evenly, or by the quantiles of a load density x^-power; what rounding leaves goes to the smallest loads."""
    if power is None:
        return tuple(rows // experts + (expert < rows % experts) for expert in range(experts))
    low, high = (1.0, most) if rows > experts else (0.01, 2.0)
    exponent = 1.0 - power
    quantiles = (np.arange(experts) + 0.5) / experts
    loads = ((high**exponent - low**exponent) * quantiles + low**exponent) ** (1.0 / exponent)
    dealt = np.round(loads / loads.sum() * rows).astype(int)
    expert, left = 0, rows - int(dealt.sum())
    while left:
        if left > 0 or dealt[expert]:
            dealt[expert] += 1 if left > 0 else -1
            left -= 1 if left > 0 else -1
        expert = (expert + 1) % experts
    return tuple(int(count) for count in dealt)


def latent_cases(
    kernel: str, table: Table, rows: str, chosen: Sequence[LatentRow], gpu: Gpu, form: dict[str, float]
) -> Cases:
    """Returns decode attention with one rule of dividing heads and KV."""
    rule = BLANK.model_copy(update=form)
    ops = [latent_op(row) for row in chosen]
    works = [latent_decode_work(op, gpu.multiprocessors, rule.head_block) for op in ops]
    cases = make_cases(kernel, table, rows, works, [(row.kv_tokens, row.seconds) for row in chosen], LENGTH_BANDS)
    return replace(
        cases,
        serial_bytes=np.array([partial_result_bytes(op, rule) for op in ops]),
        split_tokens=np.array([split_tokens(op, rule, gpu.multiprocessors) for op in ops]),
        form=form,
    )


RATES = {"fp8": "fp8", "nvfp4": "fp4"}
"""The tensor rate that a format computes with, where it is not that of BF16."""


def _rate(storage: str) -> str:
    return RATES.get(storage, "bf16")


MOE_ROWS: dict[str, tuple[str, Callable[[MoeRow], bool], str]] = {
    "int4-g32": ("int4_wo", lambda row: row.tp <= 8 and row.hidden == 7168, "256 or 384 experts top-8 of 7168 x 2048"),
    "fp8": (
        "fp8_block",
        lambda row: row.tp <= 8 and (row.hidden, row.intermediate) == (7168, 2048),
        "256 or 384 experts top-8 of 7168 x 2048",
    ),
    "nvfp4": ("nvfp4", lambda row: row.tp <= 8 and row.experts >= 128 and row.hidden >= 2048, "128 experts and more"),
    "mxfp4": ("w4a16_mxfp4", lambda row: row.tp <= 8 and row.experts >= 32, "32 experts and more"),
    "bf16": ("bfloat16", lambda row: row.tp <= 8 and row.experts >= 128 and row.hidden >= 2048, "128 experts and more"),
}
ANY_LENGTH = 2**20
SPLIT_RULES: tuple[dict[str, float], ...] = (
    {"head_block": 16, "kv_splits": 8, "longest_split": 1024, "most_splits": 0, "split_overlap": 1.0},
    {"head_block": 16, "kv_splits": 1, "longest_split": 512, "most_splits": 64, "split_overlap": 0.0},
    {"head_block": 16, "kv_splits": 1, "longest_split": 512, "most_splits": 64, "split_overlap": 1.0},
    {"head_block": 64, "kv_splits": 1, "longest_split": 512, "most_splits": 64, "split_overlap": 0.0},
    {"head_block": 64, "kv_splits": 1, "longest_split": ANY_LENGTH, "most_splits": 0, "split_overlap": 0.0},
)
"""How kernels are seen to divide heads and KV; the rule that fits best is taken. The first is SGLang's Triton kernel,
the second vLLM's; those of Hopper and Blackwell data centre GPUs take 64 heads at once and balance their own splits."""
