"""pipesim: which TP×PP split should serve this language model on these GPUs, and why.

The names below are the Python API; each is loaded when it is first used, so that `import pipesim` costs nothing.

>>> import pipesim
>>> pipesim.predict(tp=2, pp=4, concurrency=64)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipesim.api import calibrate, explain, load, load_hardware, load_model, plan, predict, sweep, validate
    from pipesim.errors import InfeasibleDeployment, MissingEvidence, PipesimError, ProfileError, UsageError
    from pipesim.profiles.hardware import HardwareProfile
    from pipesim.profiles.model import ModelProfile
    from pipesim.results import Calibration, Explanation, Plans, Prediction, Sweep, Validation

__all__ = [
    "Calibration",
    "Explanation",
    "HardwareProfile",
    "InfeasibleDeployment",
    "MissingEvidence",
    "ModelProfile",
    "PipesimError",
    "Plans",
    "Prediction",
    "ProfileError",
    "Sweep",
    "UsageError",
    "Validation",
    "calibrate",
    "explain",
    "load",
    "load_hardware",
    "load_model",
    "plan",
    "predict",
    "sweep",
    "validate",
]
