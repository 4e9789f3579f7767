"""All constants of a box from the measured kernel tables of its GPU, and what to say about them."""

import textwrap
from dataclasses import dataclass
from pathlib import Path

from pipesim.calibration import cases
from pipesim.calibration.cases import Cases
from pipesim.calibration.curves import CurveFit, fit_collectives
from pipesim.calibration.doubts import doubts
from pipesim.calibration.fit import KernelFit, fit_kernel, with_memory
from pipesim.calibration.grouped_cases import grouped_cases
from pipesim.calibration.solve import Errors
from pipesim.calibration.write import put, with_fits
from pipesim.importers import STACKS
from pipesim.importers import kernel_tables as kernels
from pipesim.profiles.hardware import Gpu
from pipesim.profiles.store import check_hardware_document, read_toml

WIDTH = 80
SMALL_KERNEL = 2.2e-6
"""GPU time [s] of a small kernel inside a measured block."""
GEMM_FORMATS = {"fp8": ["fp8_block", "fp8"], "nvfp4": ["nvfp4"]}
"""Number formats of the tables by storage, the preferred one first."""


@dataclass(frozen=True)
class CalibrationReport:
    """What was fitted, how well, and what it changes in the profile."""

    profile: Path
    system: str
    package: str
    """The package of the tables, with its version."""
    kernels: tuple[KernelFit, ...]
    curves: tuple[CurveFit, ...]
    doubts: tuple[str, ...]
    """Classes that look as if their rows measured another kernel."""
    difference: str
    """Unified diff of the profile."""
    written: bool


def calibrate_hardware(profile_path: Path, system: str, dry_run: bool) -> CalibrationReport:
    """Fits every constant of a hardware profile that the tables of `system` can give, and writes them unless dry.

    Raises:
        PipesimError: without the package of the tables.
        ProfileError: for a system without tables, a profile or a table that cannot be used.
    """
    gpu = check_hardware_document(read_toml(profile_path), profile_path).gpu
    fits, curves = fit_kernels(system, gpu), fit_curves(system)
    changes = put(profile_path, with_fits(profile_path, [*fits, *curves]), dry_run)
    package = f"{kernels.PACKAGE} {kernels.package_version()}"
    written = not dry_run and bool(changes)
    return CalibrationReport(profile_path, system, package, fits, curves, doubts(fits, gpu), changes, written)


def fit_kernels(system: str, gpu: Gpu) -> tuple[KernelFit, ...]:
    """Returns the fit of every kernel class that is measured on a system."""
    gemm = fit_kernel(cases.gemm_cases(system, "bf16", ["bfloat16"]), gpu)
    memory = gemm.constants["memory"]
    narrow = [storage for storage, rate in cases.RATES.items() if rate in gpu.tensor_rate]
    storages = ["int4-g32", "bf16", "mxfp4", *narrow]
    found: list[list[Cases]] = [cases.expert_cases(system, gpu, storage, STACKS[0]) for storage in storages]
    found += [cases.expert_cases(system, gpu, storage, STACKS[1]) for storage in storages]
    found += [cases.gemm_cases(system, storage, GEMM_FORMATS[storage]) for storage in narrow]
    found += [[attention] for attention in grouped_cases(system)]
    found += [cases.decode_cases(system, gpu, memory), cases.prefill_cases(system)]
    found.append(cases.module_prefill_cases(system, gpu, gemm.constants, SMALL_KERNEL))
    fits = [gemm, *(fit_kernel(candidates, gpu) for candidates in found if candidates)]
    if absorb := cases.absorb_cases(system):
        note = "these rows are warm in L2, so the memory rate is that of the cold GEMMs; held-out errors are as is"
        fits.append(with_memory(fit_kernel(absorb, gpu), gpu, memory, note))
    floors = [fit.constants["floor"] for fit in fits if fit.name == "mla_decode"]
    if floors and (modules := cases.module_decode_cases(system, gpu, STACKS[1], floors[0], memory)):
        fits.append(fit_kernel(modules, gpu))
    return tuple(fits)


def fit_curves(system: str) -> tuple[CurveFit, ...]:
    """Returns the curves of the engine's own AllReduce and of NCCL."""
    fits: list[CurveFit] = []
    if custom := kernels.find_table(system, "comm", "custom_allreduce", STACKS[:1]):
        fits += fit_collectives(custom, kernels.read_custom_all_reduce(custom.path), "custom")
    if nccl := kernels.find_table(system, "comm", "nccl", ["nccl"]):
        fits += fit_collectives(nccl, kernels.read_nccl(nccl.path), "nccl")
    return tuple(fits)


def calibration_text(report: CalibrationReport) -> str:
    """Returns the report for a person, at most 80 columns wide."""
    head = f"{report.profile.stem} from {report.package}, {report.system}"
    lines = textwrap.wrap(head, WIDTH)
    lines += ["mean absolute error; held-out: every second size, fitted to the others;", "left out: one size at a time"]
    lines += ["", f"{'kernels':<34}{'rows':>7}{'mean':>8}{'held-out':>11}{'left out':>11}"]
    for fit in report.kernels:
        lines += _lines(fit.name, len(fit.cases), fit.errors)
    lines += ["", f"{'collectives':<34}{'sizes':>7}{'mean':>8}{'held-out':>11}{'left out':>11}"]
    for curve in report.curves:
        lines += _lines(curve.name, curve.points, curve.errors)
    for text in report.doubts:
        lines += ["", *textwrap.wrap(f"doubtful: {text}", WIDTH)]
    changed = sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in report.difference.splitlines())
    done = "written to" if report.written else "not written to"
    lines += ["", *textwrap.wrap(f"{changed} changed lines, {done} {report.profile}", WIDTH, break_long_words=False)]
    return "\n".join(lines)


def _lines(name: str, rows: int, errors: Errors) -> list[str]:
    first = f"{name:<34}{rows:>7}{errors.mean:>8.1%}{errors.held_out:>11.1%}{errors.one_out:>11.1%}"
    bands = "  ".join(f"{_size(band.smallest)} {band.mean:.1%}" for band in errors.bands)
    return [first, *textwrap.wrap(f"from {bands}", WIDTH - 4, initial_indent="    ", subsequent_indent="    ")]


def _size(value: float) -> str:
    for unit, scale in (("Mi", 2**20), ("Ki", 2**10)):
        if value >= scale:
            return f"{value / scale:.0f} {unit}"
    return f"{value:.0f}"
