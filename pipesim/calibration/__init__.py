"""Constants of a hardware profile from measured kernels: fitted, judged on sizes left out, and written with sources."""

from pipesim.calibration.box import CalibrationReport, calibrate_hardware, calibration_text
from pipesim.calibration.box_files import curves_from_nccl_tests, measured_curves_text, run_fit_text
from pipesim.calibration.curves import CurveFit, curve_from_points
from pipesim.calibration.fit import KernelFit
from pipesim.calibration.runs import fit_runs
from pipesim.calibration.write import difference, host_difference, write_host, write_profile

__all__ = [
    "CalibrationReport",
    "CurveFit",
    "KernelFit",
    "calibrate_hardware",
    "calibration_text",
    "curve_from_points",
    "curves_from_nccl_tests",
    "difference",
    "fit_runs",
    "host_difference",
    "measured_curves_text",
    "run_fit_text",
    "write_host",
    "write_profile",
]
