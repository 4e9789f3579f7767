"""Everything that was measured of a box into its profile: kernel tables, nccl-tests output, whole runs."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pipesim.calibration.box import calibrate_hardware, calibration_text
from pipesim.calibration.box_files import curves_from_nccl_tests, measured_curves_text, run_fit_text
from pipesim.calibration.runs import fit_runs
from pipesim.calibration.write import put, with_fits, with_host
from pipesim.errors import UsageError
from pipesim.files import write_whole
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.store import find, is_derived, is_shipped, load_hardware
from pipesim.runs import load_runs


@dataclass(frozen=True)
class Calibration:
    """What was fitted, in words, and what it changes in the profile's file."""

    path: Path
    """Of the profile that is, or would be, written."""
    written: bool
    texts: tuple[str, ...]
    """Errors of the fits, one text for each kind of evidence."""
    differences: tuple[str, ...]
    """Unified differences of the file, each from the profile as it was before its step."""


def calibrate(
    hardware: str,
    system: str | None = None,
    nccl_tests: Sequence[Path] = (),
    runs: Sequence[Path] = (),
    dry_run: bool = False,
    output: Path | None = None,
) -> Calibration:
    """Returns what the evidence makes of a profile, and writes it in place, or to `output`, unless `dry_run`.

    Args:
        hardware: name or .toml file of the profile.
        system: system of the kernel tables.
        nccl_tests: output of nccl-tests on the box, text or JSON.
        runs: files of measured runs; those of role calibration are used.
        dry_run: whether to write nothing.
        output: file of a new profile, laid over this one, for what is fitted.

    Raises:
        UsageError: for a box without a file of its own or with one of pipesim's and no `output`, without evidence, and
            for an `output` that cannot be written.
        ProfileError: for a file that cannot be used.
    """
    profile = load_hardware(hardware)
    if not (system or nccl_tests or runs):
        raise UsageError("calibrate", hardware, "one of --system, --nccl-tests and --runs")
    if output is not None:
        with _draft(hardware, profile, output, not dry_run) as draft:
            found = _calibrated(draft, profile, system, nccl_tests, runs, False)
        return replace(found, path=output, written=not dry_run)
    path = None if is_derived(hardware) else find("hardware", hardware)
    if path is None or (not dry_run and is_shipped("hardware", path)):
        given = "a box without a file of its own" if path is None else "a profile that comes with pipesim"
        raise UsageError("HARDWARE", f"{hardware}, {given}", "-o FILE for the calibrated one, or your own .toml file")
    return _calibrated(path, profile, system, nccl_tests, runs, dry_run)


@contextmanager
def _draft(base: str, below: HardwareProfile, output: Path, keep: bool) -> Iterator[Path]:
    """Yields a profile laid over another, beside `output`; it takes its place where all went well, if it is kept."""
    draft = output.with_name(f".{output.stem}.{os.getpid()}.toml")
    document = {
        "schema_version": 1,
        "extends": os.path.relpath(base, output.parent) if base.endswith(".toml") else base,
        "name": output.stem,
        "description": f"{below.gpus}x {below.gpu.name}, calibrated over {below.name}",
    }
    try:
        write_whole(draft, "".join(f"{key} = {json.dumps(value)}\n" for key, value in document.items()))
        yield draft
        if keep:
            write_whole(output, draft.read_bytes())
    finally:
        draft.unlink(missing_ok=True)


def _calibrated(
    path: Path,
    profile: HardwareProfile,
    system: str | None,
    nccl_tests: Sequence[Path],
    runs: Sequence[Path],
    dry_run: bool,
) -> Calibration:
    texts, changes = [], []
    if system:
        kernels = calibrate_hardware(path, system, dry_run)
        changes.append(kernels.difference)
        texts.append(calibration_text(kernels))
    if nccl_tests:
        curves = curves_from_nccl_tests(nccl_tests, profile)
        changes.append(put(path, with_fits(path, curves.fits), dry_run))
        texts.append(measured_curves_text(curves))
    if runs:
        fit = fit_runs(load_runs(runs), profile)
        changes.append(put(path, with_host(path, fit), dry_run))
        texts.append(run_fit_text(fit))
    return Calibration(path, not dry_run, tuple(texts), tuple(filter(None, changes)))
