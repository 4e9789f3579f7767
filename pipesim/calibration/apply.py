"""Everything that was measured of a box into its profile: kernel tables, nccl-tests output, whole runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipesim.calibration.box import calibrate_hardware, calibration_text
from pipesim.calibration.box_files import curves_from_nccl_tests, measured_curves_text, run_fit_text
from pipesim.calibration.runs import fit_runs
from pipesim.calibration.write import difference, launch_time_difference, write_launch_time, write_profile
from pipesim.errors import UsageError
from pipesim.profiles.store import find, is_derived, load_hardware
from pipesim.runs import load_runs


@dataclass(frozen=True)
class Calibration:
    """What was fitted, in words, and what it changes in the profile's file."""

    path: Path
    """Of the profile."""
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
) -> Calibration:
    """Returns what the evidence makes of a profile, and writes it in place unless `dry_run`.

    Args:
        hardware: name or .toml file of the profile.
        system: system of the kernel tables.
        nccl_tests: output of nccl-tests on the box, text or JSON.
        runs: files of measured runs; those of role calibration are used.
        dry_run: whether to write nothing.

    Raises:
        UsageError: for a box without a file of its own, and when there is no evidence.
        ProfileError: for a file that cannot be used.
    """
    if is_derived(hardware):
        show = f"pipesim profiles show {hardware} > my-box.toml"
        raise UsageError("HARDWARE", hardware, f"a profile with a file to write into (`{show}` makes one)")
    path = find("hardware", hardware)
    profile = load_hardware(hardware)
    if not (system or nccl_tests or runs):
        raise UsageError("calibrate", hardware, "one of --system, --nccl-tests and --runs")
    texts, changes = [], []
    if system:
        kernels = calibrate_hardware(path, system, dry_run)
        changes.append(kernels.difference)
        texts.append(calibration_text(kernels))
    if nccl_tests:
        curves = curves_from_nccl_tests(nccl_tests)
        changes.append(difference(path, curves.fits))
        texts.append(measured_curves_text(curves))
        if not dry_run:
            write_profile(path, curves.fits)
    if runs:
        fit = fit_runs(load_runs(runs), profile)
        launch = profile.host.eager_launch * fit.launch_factor
        changes.append(launch_time_difference(path, launch))
        texts.append(run_fit_text(fit, profile.host.eager_launch))
        if not dry_run:
            write_launch_time(path, launch)
    return Calibration(path, not dry_run, tuple(texts), tuple(filter(None, changes)))
