"""The measured kernel tables of the PyPI package aiconfigurator-core, as frozen records in SI units.

Layout: systems/data/<system>/<op>/<stack>/<version>/<name>_perf.parquet; latency in ms, message_size in elements
(a `half` and an `int8` message of equal bytes take equal time in them, equal elements do not).
"""

import importlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pipesim.errors import PipesimError, ProfileError
from pipesim.importers import STACKS
from pipesim.profiles.hardware import CollectiveOp, LaunchMode

PACKAGE = "aiconfigurator-core"
ELEMENT_BYTES = {"half": 2.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "int8": 1.0}
L2_BYTES = {"rtx_pro_6000_server": 128, "h200_sxm": 50, "h100_sxm": 50, "b200_sxm": 126, "a100_sxm": 40, "l40s": 96}
"""L2 cache of one GPU [MiB], by its datasheet or architecture paper."""
WARM_SHARE = 0.21
"""GEMM weights up to this share of the L2 stay in it between timed calls: the rate falls from 2.6 to 1.5 TB/s between
22 and 25 MB on the RTX PRO 6000, of 128 MiB; 28 MB are surely cold."""


@dataclass(frozen=True)
class Table:
    """One parquet file of the package."""

    system: str
    op: str
    stack: str
    version: str
    name: str
    """File name without `_perf.parquet`: "gemm", "generation_mla"."""
    path: Path

    def __str__(self) -> str:
        return f"{self.system}, {self.op}, {self.stack} {self.version}"


class GemmRow(NamedTuple):
    """One GEMM of m rows by an n x k weight."""

    m: int
    n: int
    k: int
    seconds: float


class MoeRow(NamedTuple):
    """The routed experts of one layer on one tensor-parallel rank."""

    tokens: int
    hidden: int
    intermediate: int
    top_k: int
    experts: int
    tp: int
    power: float | None
    """Exponent of the collector's load density; None: every expert gets as many tokens as the next."""
    seconds: float


class LatentRow(NamedTuple):
    """Attention over the MLA latent: the kernel, or a whole attention block ("module")."""

    heads: int
    requests: int
    new_tokens: int
    kv_tokens: int
    """Tokens attended by the last new one, itself included."""
    element_bytes: float
    seconds: float
    kernel: str = ""
    """As the table names it: "triton", "FLASH_ATTN"."""


class GroupedRow(NamedTuple):
    """Grouped-query attention of one layer on one rank, keys and values in 16 bits."""

    heads: int
    kv_heads: int
    head_dim: int
    requests: int
    new_tokens: int
    kv_tokens: int
    """Tokens attended by the last new one, itself included."""
    seconds: float


class AbsorbRow(NamedTuple):
    """One of the two batched products with an absorbed half of kv_b_proj."""

    name: str
    tokens: int
    heads: int
    seconds: float


class CollectiveRow(NamedTuple):
    """One collective."""

    op: CollectiveOp
    ranks: int
    launch: LaunchMode
    bytes: float
    """Message size as nccl-tests counts it."""
    seconds: float


Row = TypeVar("Row", GemmRow, MoeRow, LatentRow, GroupedRow, AbsorbRow, CollectiveRow)


def extra(module: str) -> Any:
    """Returns a module of the extra "kernels". Raises PipesimError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise PipesimError(f'{module} is not installed; run: pip install "pipesim[kernels]"') from None


def package_version() -> str:
    """Returns the installed version of aiconfigurator-core. Raises PipesimError without it."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise PipesimError(f'{PACKAGE} is not installed; run: pip install "pipesim[kernels]"') from None


def data_folder() -> Path:
    """Returns the folder with one sub-folder per system. Raises PipesimError without the package."""
    package_version()
    spec = importlib.util.find_spec("aiconfigurator_core")
    if spec is None or spec.origin is None:
        raise PipesimError(f'{PACKAGE} is not importable; run: pip install "pipesim[kernels]"')
    return Path(spec.origin).parent / "systems" / "data"


def systems() -> list[str]:
    """Returns the names of all systems with tables."""
    return sorted(folder.name for folder in data_folder().iterdir() if folder.is_dir())


def tables(system: str, op: str) -> tuple[Table, ...]:
    """Returns the tables of one op on one system: the newest version of each file per stack, first stack first.

    Raises:
        ProfileError: for a system without tables. An op without tables gives an empty tuple.
    """
    folder = data_folder() / system
    if not folder.is_dir():
        raise ProfileError("--system", "", f'"{system}"', f"one of {', '.join(systems())}")
    newest: dict[tuple[str, str], Table] = {}
    for path in sorted(folder.glob(f"{op}/*/*/*_perf.parquet"), key=lambda path: _version_key(path.parent.name)):
        stack, version, name = path.parent.parent.name, path.parent.name, path.name.removesuffix("_perf.parquet")
        if stack in STACKS:
            newest[stack, name] = Table(system, op, stack, version, name, path)
    return tuple(sorted(newest.values(), key=lambda table: (STACKS.index(table.stack), table.name)))


def find_table(system: str, op: str, name: str, stacks: Sequence[str]) -> Table | None:
    """Returns the newest table of one name, of the first of `stacks` that has one."""
    fitting = [table for table in tables(system, op) if table.name == name and table.stack in stacks]
    return min(fitting, key=lambda table: stacks.index(table.stack), default=None)


def warm_bytes(system: str) -> float:
    """Returns the size [B] up to which a GEMM's weights stay in the L2 cache between timed calls."""
    return WARM_SHARE * l2_bytes(system)


def l2_bytes(system: str) -> float:
    """Returns the L2 cache [B] of one GPU of a system. Raises ProfileError for a system of unknown size."""
    if system not in L2_BYTES:
        raise ProfileError("--system", "", f'"{system}"', f"one of known L2 size: {', '.join(sorted(L2_BYTES))}")
    return L2_BYTES[system] * 2.0**20


def read_gemm(path: Path, dtype: str) -> tuple[GemmRow, ...]:
    """Returns the GEMMs of one number format ("bfloat16", "fp8", "fp8_block"). Raises ProfileError."""
    columns = _read(path, ("gemm_dtype", "m", "n", "k", "latency"), {"gemm_dtype": [dtype]})
    return _rows(GemmRow, columns["m"], columns["n"], columns["k"], _seconds(path, columns))


def read_moe(path: Path, dtype: str) -> tuple[MoeRow, ...]:
    """Returns the rows without expert parallelism, of the kernel with the most of them. Raises ProfileError."""
    names = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "distribution")
    wanted = (*names, "moe_dtype", "moe_ep_size", "kernel_source", "latency")
    columns = _read(path, wanted, {"moe_dtype": [dtype], "moe_ep_size": [1]})
    powers = [_power(path, text) for text in columns["distribution"]]
    rows = _rows(MoeRow, *(columns[name] for name in names[:-1]), powers, _seconds(path, columns))
    return _of_commonest_kernel(rows, columns["kernel_source"])


def read_latent(path: Path, storage: Sequence[str] = ("bfloat16",)) -> tuple[LatentRow, ...]:
    """Returns attention rows, kernels or modules with BF16 GEMMs, by number format of the KV. Raises ProfileError."""
    wanted = ("num_heads", "batch_size", "isl", "step", "kv_cache_dtype", "kernel_source", "latency")
    where: dict[str, Sequence[object]] = {"kv_cache_dtype": storage}
    if "_module" in path.name:
        where["gemm_type"] = ["bfloat16"]
    columns = _read(path, (*wanted, *(name for name in where if name not in wanted)), where)
    new = columns["isl"]
    kv = [isl + step for isl, step in zip(new, columns["step"], strict=True)]
    element = [ELEMENT_BYTES[text] for text in columns["kv_cache_dtype"]]
    seconds, source = _seconds(path, columns), columns["kernel_source"]
    return _rows(LatentRow, columns["num_heads"], columns["batch_size"], new, kv, element, seconds, source)


def read_grouped(path: Path, head_dim: int = 128) -> tuple[GroupedRow, ...]:
    """Returns 16-bit attention without a window, of the kernel with the most rows of that kind. Raises ProfileError."""
    names = ("num_heads", "num_key_value_heads", "head_dim", "batch_size", "isl", "step")
    where: dict[str, Sequence[object]] = {
        "head_dim": [head_dim],
        "kv_cache_dtype": ["bfloat16"],
        "attn_dtype": ["bfloat16"],
        "window_size": [0],
    }
    if "window_size" not in _columns_of(path):
        del where["window_size"]  # tables of older collectors, which timed no windows
    wanted = (*dict.fromkeys((*names, *where)), "kernel_source", "latency")
    columns = _read(path, wanted, where)
    kv = [isl + step for isl, step in zip(columns["isl"], columns["step"], strict=True)]
    rows = _rows(GroupedRow, *(columns[name] for name in names[:-1]), kv, _seconds(path, columns))
    return _of_commonest_kernel(rows, columns["kernel_source"])


def read_absorb(path: Path) -> tuple[AbsorbRow, ...]:
    """Returns the BF16 batched products of absorbed attention. Raises ProfileError."""
    columns = _read(path, ("op_name", "bmm_dtype", "num_tokens", "num_heads", "latency"), {"bmm_dtype": ["bfloat16"]})
    return _rows(AbsorbRow, columns["op_name"], columns["num_tokens"], columns["num_heads"], _seconds(path, columns))


def read_nccl(path: Path) -> tuple[CollectiveRow, ...]:
    """Returns AllReduce and AllGather of nccl-tests over 16-bit elements. Raises ProfileError."""
    wanted = ("op_name", "nccl_dtype", "num_gpus", "message_size", "latency")
    columns = _read(path, wanted, {"nccl_dtype": ["half"], "op_name": ["all_reduce", "all_gather"]})
    size = [count * ELEMENT_BYTES["half"] for count in columns["message_size"]]
    graph = ["graph"] * len(size)
    return _rows(CollectiveRow, columns["op_name"], columns["num_gpus"], graph, size, _seconds(path, columns))


def read_custom_all_reduce(path: Path) -> tuple[CollectiveRow, ...]:
    """Returns an engine's own AllReduce entry point, in CUDA graphs and launched from Python. Raises ProfileError."""
    wanted = ("op_name", "allreduce_dtype", "num_gpus", "message_size", "latency")
    columns = _read(path, (*wanted, "kernel_source"), {"allreduce_dtype": ["bfloat16"], "op_name": ["all_reduce"]})
    size = [count * ELEMENT_BYTES["bfloat16"] for count in columns["message_size"]]
    launch = ["eager" if text.endswith("_eager") else "graph" for text in columns["kernel_source"]]
    return _rows(CollectiveRow, columns["op_name"], columns["num_gpus"], launch, size, _seconds(path, columns))


def _read(path: Path, wanted: Sequence[str], where: Mapping[str, Sequence[object]]) -> dict[str, list[Any]]:
    """Returns the wanted columns of the rows in which each column of `where` has one of its values."""
    parquet, names = extra("pyarrow.parquet"), _columns_of(path)
    if missing := [name for name in wanted if name not in names]:
        given = f"a table with the columns {', '.join(names)}"
        raise ProfileError(path, "", given, f"one with {', '.join(missing)} too", "was it made by another version?")
    try:
        table = parquet.read_table(path, columns=list(wanted), filters=[(name, "in", where[name]) for name in where])
    except (OSError, ValueError, TypeError, NotImplementedError) as error:
        raise ProfileError(path, "", f"unreadable columns ({_first(error)})", f"{', '.join(wanted)}") from None
    columns: dict[str, list[Any]] = table.to_pydict()
    return columns


def _columns_of(path: Path) -> list[str]:
    try:
        names: list[str] = extra("pyarrow.parquet").read_schema(path).names
    except OSError as error:
        raise ProfileError(path, "", "no such file", "a parquet table") from error
    except ValueError as error:
        raise ProfileError(
            path, "", f"no readable parquet file ({_first(error)})", "a complete parquet table"
        ) from None
    return names


def _of_commonest_kernel(rows: tuple[Row, ...], kernels: Sequence[str]) -> tuple[Row, ...]:
    commonest = max(sorted(set(kernels)), key=kernels.count, default="")
    return tuple(row for row, kernel in zip(rows, kernels, strict=True) if kernel == commonest)


def _rows(kind: type[Row], *columns: Sequence[Any]) -> tuple[Row, ...]:
    return tuple(map(kind._make, zip(*columns, strict=True)))


def _seconds(path: Path, columns: dict[str, list[Any]]) -> list[float]:
    """Returns the latencies [s] of columns without gaps."""
    for name, values in columns.items():
        if None in values:
            raise ProfileError(path, name, f"nothing in row {values.index(None) + 1}", "a value in every row")
    wrong = [value for value in columns["latency"] if not (isinstance(value, float) and 0.0 < value < 1e9)]
    if wrong:
        raise ProfileError(path, "latency", repr(wrong[0]), "a positive time in ms")
    return [value * 1e-3 for value in columns["latency"]]


def _power(path: Path, distribution: str) -> float | None:
    if distribution == "balanced":
        return None
    found = re.fullmatch(r"power_law_(\d+\.?\d*)", distribution)
    if not found:
        raise ProfileError(path, "distribution", f'"{distribution}"', '"balanced" or "power_law_<exponent>"')
    return float(found[1])


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _first(error: Exception) -> str:
    return str(error).partition("\n")[0].partition(".")[0]
