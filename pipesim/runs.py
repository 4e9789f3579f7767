"""Measured runs brought before the predictor: read from files, predicted under the conditions they state or assume."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from pipesim.deployment import Deployment, ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.errors import InfeasibleDeployment, PipesimError, ProfileError, UnpredictableRun, UsageError
from pipesim.fitting import deploy
from pipesim.measured import MeasuredRun, Runs
from pipesim.prediction import Prediction, Predictor
from pipesim.profiles.store import available, load_hardware, load_model, read_toml, validated
from pipesim.workload import Workload


def load_runs(paths: Iterable[Path]) -> list[Runs]:
    """Returns the measured runs of some files, of all that ship if none is named. Raises ProfileError."""
    files = list(paths) or list(available("runs").values())
    for path in files:
        if not path.is_file():
            raise ProfileError(path, "", "no such file", "a file of measured runs in TOML")
    loaded = {path: validated(Runs, read_toml(path), path) for path in files}
    _refuse_double_use(loaded)
    return list(loaded.values())


def _refuse_double_use(files: Mapping[Path, Runs]) -> None:
    """A run used to calibrate never validates, under whatever name it stands in whichever file."""
    used: dict[str, str] = {}
    for path, file in files.items():
        for run in file.run:
            conditions = run.model_dump_json(exclude={"id", "role", "source", "assumed", "tolerance", "note"})
            role = used.setdefault(conditions, run.role)
            if {role, run.role} == {"calibration", "validation"}:
                raise ProfileError(
                    path, f'run "{run.id}"', "a run of role calibration and of role validation", "one role"
                )


def predict_run(run: MeasuredRun, seeds: int, scale: Mapping[str, float] | None = None) -> Prediction:
    """Returns the prediction of one run; `scale` puts factors on prices (see `CostModel`).

    Raises:
        UnpredictableRun: when its split, box or load is refused.
        PipesimError: when what it names cannot be used; the text of either names the run.
    """
    try:
        return _predict(run, seeds, scale)
    except (InfeasibleDeployment, UsageError) as error:
        raise UnpredictableRun(run.id, str(error)) from None
    except PipesimError as error:
        raise PipesimError(f'run "{run.id}": {error}') from None


def workload_of(run: MeasuredRun) -> Workload:
    """Returns the load of a run. Raises UsageError for numbers that no load could have."""
    load = run.workload
    return Workload(
        num_prompts=load.num_prompts or load.waves * load.concurrency,
        spacing_s=load.spacing,
        **load.model_dump(exclude={"num_prompts", "waves", "spacing"}),
    )


def deployment_of(run: MeasuredRun) -> Deployment:
    """Returns what a run was measured on. Raises PipesimError when its model cannot be split so on its box."""
    return deploy(
        load_model(run.model),
        load_hardware(run.hardware),
        ParallelPlan(**vars(run.plan)),
        EngineSettings(**vars(run.engine)),
    )


def _predict(run: MeasuredRun, seeds: int, scale: Mapping[str, float] | None = None) -> Prediction:
    workload = workload_of(run)
    return Predictor(deployment_of(run), scale).predict(workload, seeds)
