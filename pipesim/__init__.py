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

_HOMES = {
    "HardwareProfile": "pipesim.profiles.hardware",
    "ModelProfile": "pipesim.profiles.model",
    **dict.fromkeys(("Calibration", "Explanation", "Plans", "Prediction", "Sweep", "Validation"), "pipesim.results"),
    **dict.fromkeys(
        ("InfeasibleDeployment", "MissingEvidence", "PipesimError", "ProfileError", "UsageError"), "pipesim.errors"
    ),
}
"""Where a name lives, if not in `pipesim.api`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_HOMES.get(name, "pipesim.api")), name)
    globals()[name] = found  # next time it is found without this function
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
