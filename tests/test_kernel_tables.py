"""Measured kernel tables are read in SI units, and a file that is not one is refused with what is wrong with it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipesim.errors import PipesimError, ProfileError
from pipesim.importers import kernel_tables as kernels
from pipesim.importers.kernel_tables import Table

pytest.importorskip("aiconfigurator_core")

SYSTEM = "rtx_pro_6000_server"
READERS: dict[str, Callable[[Path], Any]] = {
    "gemm": lambda path: kernels.read_gemm(path, "bfloat16"),
    "moe": lambda path: kernels.read_moe(path, "int4_wo"),
    "generation_mla": kernels.read_latent,
    "mla_bmm": kernels.read_absorb,
    "nccl": kernels.read_nccl,
    "custom_allreduce": kernels.read_custom_all_reduce,
}


def table(op: str, name: str, stack: str = "sglang") -> Table:
    found = kernels.find_table(SYSTEM, op, name, [stack])
    assert found is not None
    return found


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    arrow = kernels.extra("pyarrow")
    kernels.extra("pyarrow.parquet").write_table(arrow.table(columns), path)
    return path


def test_every_stack_gives_its_newest_version_and_the_engines_come_first() -> None:
    found = kernels.tables(SYSTEM, "comm")
    assert [(entry.stack, entry.name) for entry in found][:2] == [
        ("sglang", "custom_allreduce"),
        ("vllm", "custom_allreduce"),
    ]
    versions = {path.name for path in found[0].path.parent.parent.iterdir()}
    assert len(versions) > 1
    assert found[0].version == max(versions, key=lambda text: [int(part) for part in text.split(".")])


def test_latencies_are_seconds_and_message_sizes_bytes() -> None:
    rows = kernels.read_nccl(table("comm", "nccl", "nccl").path)
    largest = max((row for row in rows if row.op == "all_reduce" and row.ranks == 2), key=lambda row: row.bytes)
    assert largest.bytes == 2 * 2**28
    assert 0.012 < largest.seconds < 0.016
    assert 30e9 < largest.bytes / largest.seconds < 45e9, "a PCIe 5.0 x16 link carries no more than 64 GB/s"


def test_equal_bytes_take_equal_time_whatever_their_element_type() -> None:
    parquet = kernels.extra("pyarrow.parquet")
    rows = parquet.read_table(table("comm", "nccl", "nccl").path).to_pylist()
    times = {
        (row["nccl_dtype"], row["message_size"] * kernels.ELEMENT_BYTES[row["nccl_dtype"]]): row["latency"]
        for row in rows
        if row["op_name"] == "all_reduce" and row["num_gpus"] == 2
    }
    shared = [size for dtype, size in times if dtype == "half" and ("int8", size) in times and size > 2**22]
    assert shared
    for size in shared:
        assert times["half", size] == pytest.approx(times["int8", size], rel=0.05)


def test_expert_rows_name_their_routing() -> None:
    powers = {row.power for row in kernels.read_moe(table("moe", "moe").path, "int4_wo")}
    assert powers == {None, 1.01, 1.2}


def test_the_warm_share_of_the_cache_is_28_megabytes_on_the_card_it_was_found_on() -> None:
    assert kernels.warm_bytes(SYSTEM) == pytest.approx(28e6, rel=0.02)


def test_an_unknown_system_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ProfileError, match=SYSTEM):
        kernels.tables("abacus", "gemm")


def test_a_missing_package_is_answered_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PipesimError, match=r'pip install "pipesim\[kernels\]"'):
        kernels.extra("pipesim_has_no_such_module")
    monkeypatch.setattr(kernels, "PACKAGE", "pipesim-has-no-such-package")
    with pytest.raises(PipesimError, match=r'pip install "pipesim\[kernels\]"'):
        kernels.data_folder()


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("damage", ["empty", "text", "truncated", "other columns", "absent"])
def test_a_file_that_is_no_table_is_refused_by_name(tmp_path: Path, name: str, damage: str) -> None:
    path = tmp_path / f"{name}_perf.parquet"
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("m,n,k,latency\n1,2,3,4\n", encoding="utf-8")
    elif damage == "truncated":
        path.write_bytes(table("comm", "nccl", "nccl").path.read_bytes()[:-100])
    elif damage == "other columns":
        write(path, {"speed": [1.0], "latency": [2.0]})
    with pytest.raises(ProfileError) as refused:
        READERS[name](path)
    assert str(path) in str(refused.value)
    assert "wanted" in str(refused.value)


def test_other_columns_are_refused_with_what_was_found_and_what_is_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "gemm_perf.parquet", {"gemm_dtype": ["bfloat16"], "m": [1], "n": [2], "latency": [1.0]})
    with pytest.raises(ProfileError, match="gemm_dtype, m, n, latency was given, one with k too is wanted"):
        kernels.read_gemm(path, "bfloat16")


@pytest.mark.parametrize("latency", [None, 0.0, -1.0, float("nan")])
def test_a_row_without_a_time_is_refused(tmp_path: Path, latency: float | None) -> None:
    columns = {"gemm_dtype": ["bfloat16"] * 2, "m": [1, 1], "n": [2, 2], "k": [3, 3], "latency": [1.0, latency]}
    with pytest.raises(ProfileError, match="latency"):
        kernels.read_gemm(write(tmp_path / "gemm_perf.parquet", columns), "bfloat16")


def test_columns_of_another_type_are_refused(tmp_path: Path) -> None:
    columns = {"gemm_dtype": [1], "m": ["a"], "n": [2], "k": [3], "latency": [1.0]}
    with pytest.raises(ProfileError, match="gemm_perf"):
        kernels.read_gemm(write(tmp_path / "gemm_perf.parquet", columns), "bfloat16")
