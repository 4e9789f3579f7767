"""Measured grouped-query attention as cases to fit."""

from collections.abc import Sequence

from pipesim.calibration.cases import LENGTH_BANDS, Cases, make_cases
from pipesim.families.grouped import decode_work, prefill_work
from pipesim.importers import STACKS
from pipesim.importers import kernel_tables as kernels
from pipesim.importers.kernel_tables import GroupedRow, Table
from pipesim.ops import Work

HEAD_DIM = 128
SHORTEST = 64
"""New tokens of the shortest prompts used."""
FEW_BYTES = 1e6
"""Decode rows with less KV than this show the floor; between it and the L2 cache, rows are warm and too fast."""


def grouped_cases(system: str) -> list[Cases]:
    """Returns decode and prefill attention of each stack that is measured."""
    found = [cases(system, stack) for stack in STACKS[:2] for cases in (_decode_cases, _prefill_cases)]
    return [cases for cases in found if cases is not None]


def _decode_cases(system: str, stack: str) -> Cases | None:
    table, rows = _rows(system, "generation_attention", stack)
    l2 = kernels.l2_bytes(system)
    chosen, works = [], []
    for row in rows:
        work = decode_work(row.head_dim, row.heads, row.kv_heads, row.requests * row.kv_tokens, 2.0)
        if work.bytes > l2 or work.bytes < FEW_BYTES:
            chosen.append(row)
            works.append(work)
    text = f"16-bit KV colder than L2 ({l2 / 2**20:.0f} MiB) or below 1 MB, head dimension {HEAD_DIM}, 2 heads and more"
    return _cases("gqa_decode", stack, table, text, works, [(row.kv_tokens, row.seconds) for row in chosen])


def _prefill_cases(system: str, stack: str) -> Cases | None:
    table, rows = _rows(system, "context_attention", stack)
    chosen = [row for row in rows if row.new_tokens >= SHORTEST and row.kv_tokens == row.new_tokens]
    works = [
        prefill_work(
            row.head_dim,
            row.heads,
            row.kv_heads,
            row.requests * row.new_tokens,
            row.requests * row.new_tokens * (row.new_tokens + 1) / 2,
        )
        for row in chosen
    ]
    text = f"prompts of {SHORTEST} tokens and more, head dimension {HEAD_DIM}, 2 heads and more to a KV head"
    return _cases("gqa_prefill", stack, table, text, works, [(row.new_tokens, row.seconds) for row in chosen])


def _rows(system: str, name: str, stack: str) -> tuple[Table | None, list[GroupedRow]]:
    table = kernels.find_table(system, "attention", name, [stack])
    rows = kernels.read_grouped(table.path, HEAD_DIM) if table else ()
    return table, [row for row in rows if row.heads >= 2 * row.kv_heads]


def _cases(
    kernel: str,
    stack: str,
    table: Table | None,
    text: str,
    works: Sequence[Work],
    measured: Sequence[tuple[float, float]],
) -> Cases | None:
    if table is None or not works:
        return None
    name = kernel if stack == STACKS[0] else f"{kernel}@{stack}"
    return make_cases(name, table, text, works, measured, LENGTH_BANDS)
