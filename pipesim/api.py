"""The Python API: the commands as functions. `import pipesim` brings these names; nothing else is promised to stay."""

import functools
from collections.abc import Iterable, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal

from pipesim import runs as measured_runs
from pipesim import validation, whatif
from pipesim.asking import SEARCHED, Grid, ask_openly
from pipesim.axes import Method
from pipesim.calibration.apply import calibrate as calibrate_profile
from pipesim.commands.plan import SearchFlags
from pipesim.commands.sweep import sweep_of
from pipesim.engine_settings import EngineName
from pipesim.errors import ProfileError, UsageError
from pipesim.fitting import deploy
from pipesim.keywords import axis_of, checked, context_of, documented, named
from pipesim.options import DEFAULT_ENGINE, OPTIONS, Question, question
from pipesim.planning.question import Percentile, RankBy
from pipesim.planning.search import search
from pipesim.prediction import Predictor
from pipesim.profiles import store
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.model import ModelProfile
from pipesim.profiles.names import DEFAULT_HARDWARE, DEFAULT_MODEL
from pipesim.results import Calibration, Explanation, Plans, Prediction, Sweep, Validation, shown, sweep_result
from pipesim.simulation import Detail
from pipesim.sweeping.run import sweep_rows

DEFAULT_SEEDS = 5

Name = str | PathLike[str]
Model = Name | ModelProfile
Hardware = Name | HardwareProfile


def load_model(name: Name) -> ModelProfile:
    """Returns a model profile by name or .toml file, or made of a Hugging Face config.json or its folder.

    Raises:
        ProfileError: when there is none, or when it is wrong.
    """
    return store.load_model(fspath(name))


def load_hardware(name: Name) -> HardwareProfile:
    """Returns a hardware profile by name or .toml file; "h100-sxm-x4" or "h100-sxm-2x8" is made from a like box.

    Raises:
        ProfileError: when there is none, or when it is wrong.
    """
    return store.load_hardware(fspath(name))


def load(name: Name) -> ModelProfile | HardwareProfile:
    """Returns the model or the box that a name or a file stands for; see `load_model` and `load_hardware`.

    Raises:
        ProfileError: when there is neither, or when its file is wrong.
    """
    text = fspath(name)
    if text.endswith(".json") or (Path(text) / "config.json").is_file():
        return store.load_model(text)
    path = store.available("model").get(text, Path(text))
    if path.suffix == ".toml" and path.is_file():  # a folder of $PIPESIM_PROFILES may hold models and boxes
        is_box = {"gpu", "gpus", "extends", "borrows"} & set(store.read_toml(path))
        return store.load_hardware(text) if is_box else store.load_model(text)
    try:
        return store.load_hardware(text)
    except ProfileError as error:
        if text in store.available("hardware") or store.is_derived(text):
            raise
        known = ", ".join(sorted([*store.available("model"), *store.available("hardware")]))
        raise ProfileError(text, "", "no such profile", f"a file or one of {known}", error.hint) from None


@documented()
def predict(
    model: Model = DEFAULT_MODEL,
    hardware: Hardware = DEFAULT_HARDWARE,
    *,
    seeds: int = DEFAULT_SEEDS,
    seed: int = 0,
    detail: Detail = "pass",
    **flags: Any,
) -> Prediction:
    """Returns tok/s, latencies, bubbles and per-GPU load of one split under one load.

    Example: predict(tp=2, pp=4, concurrency=64)

    Args:
        model: a profile, or what `load_model` takes.
        hardware: a profile, or what `load_hardware` takes.
        seeds: runs with different seeds of lengths and arrivals.
        seed: the first of them.
        detail: grain of the events, with the same results: "pass", "stage" or "op".
        flags: the options of `pipesim predict` as keywords, listed below.

    Raises:
        InfeasibleDeployment: when the box cannot run it; `reasons` says why.
        PipesimError: for a value that no box could meet and for a file that cannot be used.
    """
    _check_count("--seeds", seeds)
    asked = _question(model, hardware, flags)
    deployment = deploy(_model(model), _hardware(hardware), asked.plan, asked.settings, asked.workload)
    found = Predictor(deployment).predict(asked.workload, seeds, detail, seed)
    return shown(Prediction, found, assumed=asked.defaults)


@documented()
def explain(prediction: Prediction | None = None, /, **flags: Any) -> Explanation:
    """Returns what one change would buy: each cost at zero, each switch flipped, sorted, with its interval.

    Example: explain(predict(tp=8, cuda_graph=False, concurrency=1))

    Args:
        prediction: of which deployment and load; None for what the keywords say.
        flags: what `predict` takes.

    Raises:
        TypeError: for a prediction and keywords.
        PipesimError: as `predict`.
    """
    if prediction is not None and flags:
        raise TypeError(f"a prediction and {', '.join(flags)} were given; either of them is wanted")
    return shown(Explanation, whatif.explain(predict(**flags) if prediction is None else prediction))


@documented(lists=True)
def sweep(
    model: Model | Sequence[Model] = DEFAULT_MODEL,
    hardware: Hardware | Sequence[Hardware] = DEFAULT_HARDWARE,
    *,
    method: Method = "closed-form",
    seeds: int = 1,
    seed: int = 0,
    jobs: int = 1,
    **flags: Any,
) -> Sweep:
    """Returns a row for every point of a grid; a list of values is an axis, the last keyword's varies fastest.

    Example: sweep(tp=[1, 2, 4, 8], pp=[1, 2, 4, 8], concurrency=[8, 64])

    Args:
        model: as for `predict`, or several.
        hardware: as for `predict`, or several.
        method: "closed-form" or "simulation" of every point.
        seeds: runs of each point that is simulated.
        seed: the first of them.
        jobs: processes.
        flags: the options of `pipesim sweep` as keywords; a number's may be a range such as "1:128" (doubling).

    Raises:
        UsageError: for an axis with no value or with one twice, for too many points and for values of a wrong type.
        ProfileError: for a profile that cannot be used.
    """
    _check_count("--seeds", seeds)
    _check_count("--jobs", jobs)
    models = _by_name("--model", [_model(one) for one in _listed(model)])
    boxes = _by_name("--hardware", [_hardware(one) for one in _listed(hardware)])
    given = {"model": list(models), "hardware": list(boxes)} | named(flags)
    axes = {name: axis_of(name, given[name]) for name in OPTIONS if name in given}
    defaults = {option.name: option.default for option in OPTIONS.values()}
    grid = Grid(axes, defaults, functools.partial(question, context_of(given)))
    points = sweep_of(grid, models, boxes, (method, seeds, seed))
    return sweep_result(points.columns, axes, list(sweep_rows(points, jobs)))


@documented()
def plan(
    model: Model = DEFAULT_MODEL,
    hardware: Hardware | Sequence[Hardware] = DEFAULT_HARDWARE,
    engine: EngineName | Literal["any"] = DEFAULT_ENGINE,
    *,
    gpus: int | None = None,
    max_ttft: str | None = None,
    max_tpot: str | None = None,
    slo_percentile: Percentile = "p99",
    rank_by: RankBy | None = None,
    gpu_hour_price: float | str | None = None,
    gpu_watts: float | None = None,
    total_tokens: float | None = None,
    num_requests: float | None = None,
    best_partition: bool = False,
    best_placement: bool = False,
    seeds: int = DEFAULT_SEEDS,
    seed: int = 0,
    jobs: int = 1,
    **flags: Any,
) -> Plans:
    """Returns every split and setting that fits, best first; flags given of what is searched are held fixed.

    Example: plan(concurrency=64, max_tpot="80 ms")

    Args:
        model: as for `predict`.
        hardware: as for `predict`, or several boxes to choose from.
        engine: as for `predict`, or "any" for the better of the engines that exist.
        gpus: most GPUs of a plan; None for all of the box.
        max_ttft: longest time to first token, such as "2 s".
        max_tpot: longest time per output token, such as "50 ms".
        slo_percentile: of TTFT, TPOT and E2E over requests, for limits and ranks.
        rank_by: what plans that keep the limits are ranked by; None for throughput, or for latency in an open loop.
        gpu_hour_price: price of a GPU-hour, or "BOX=2.5,OTHER=1.2".
        gpu_watts: power of one GPU at work, for the energy of a job.
        total_tokens: output tokens of a whole batch job.
        num_requests: requests of a whole batch job.
        best_partition: whether every setting is tried with its own balanced layer split.
        best_placement: whether other orders of GPUs are tried: group by group, and across groups.
        seeds: runs of each of the five best plans.
        seed: the first of them.
        jobs: processes that simulate.
        flags: the options of `pipesim plan` as keywords.

    Raises:
        PipesimError: for a value that no box could meet and for a file that cannot be used.
    """
    _check_count("--seeds", seeds)
    _check_count("--jobs", jobs)
    boxes = tuple(_by_name("--hardware", [_hardware(one) for one in _listed(hardware)]).values())
    asked = _question(model, boxes[0], flags, searched=SEARCHED)
    said = SearchFlags(
        gpus,
        max_ttft,
        max_tpot,
        slo_percentile,
        rank_by,
        None if gpu_hour_price is None else str(gpu_hour_price),
        gpu_watts,
        total_tokens,
        num_requests,
        best_partition,
        best_placement,
    )
    wanted = said.question(asked, _model(model), boxes, engine, (seeds, seed))
    return shown(Plans, search(wanted, jobs), job=said.job)


def validate(paths: Iterable[Name] | Name = (), seeds: int = validation.SEEDS) -> Validation:
    """Returns predictions beside the figures of files of measured runs, by default of all that ship with pipesim.

    Raises:
        ProfileError: for a file that cannot be used.
    """
    _check_count("--seeds", seeds)
    files = measured_runs.load_runs(map(Path, _listed(paths)))
    return shown(Validation, validation.validate(files, seeds))


def calibrate(
    hardware: Name,
    system: str | None = None,
    nccl_tests: Iterable[Name] | Name = (),
    runs: Iterable[Name] | Name = (),
    dry_run: bool = False,
    output: Name | None = None,
) -> Calibration:
    """Fits a profile's constants to what was measured on its box, and writes its file in place, or to `output`.

    Args:
        hardware: name or .toml file of the profile.
        system: system of the kernel tables, such as "rtx_pro_6000_server".
        nccl_tests: files with the output of nccl-tests on the box.
        runs: files of measured runs; those of role calibration are used.
        dry_run: whether to write nothing.
        output: .toml file of a new profile, laid over this one; needed where it has no file of its own, or comes with
            pipesim.

    Raises:
        UsageError: without any evidence, without an `output` that is needed, or with one that cannot be written.
        ProfileError: for a file that cannot be used.
    """
    tests, files = (tuple(map(Path, _listed(given))) for given in (nccl_tests, runs))
    path = None if output is None else Path(output)
    return shown(Calibration, calibrate_profile(fspath(hardware), system, tests, files, dry_run, path))


def _question(model: Model, hardware: Hardware, flags: Any, searched: tuple[str, ...] = ()) -> Question:
    """Returns the question that keywords ask; what was passed for the profiles counts as said unless it is default."""
    given = checked(flags)
    said = {name: _name(profile) for name, profile in (("model", model), ("hardware", hardware))}
    said = {name: text for name, text in said.items() if text != OPTIONS[name].default}
    return ask_openly({"context": context_of(given | said), **given, **said}, searched)


def _model(given: Model) -> ModelProfile:
    if isinstance(given, HardwareProfile):
        raise UsageError("model", given, "a model profile or its name")
    return given if isinstance(given, ModelProfile) else load_model(given)


def _hardware(given: Hardware) -> HardwareProfile:
    if isinstance(given, ModelProfile):
        raise UsageError("hardware", given, "a hardware profile or its name")
    return given if isinstance(given, HardwareProfile) else load_hardware(given)


def _name(given: Model | Hardware) -> str:
    return given.name if isinstance(given, ModelProfile | HardwareProfile) else fspath(given)


def _listed(given: Any) -> list[Any]:
    """Returns one thing, or several, as a list."""
    single = isinstance(given, str | PathLike | ModelProfile | HardwareProfile)
    return [given] if single else list(given)


def _by_name(flag: str, profiles: list[Any]) -> dict[str, Any]:
    """Returns profiles by their names. Raises UsageError when there is none, or two have one name."""
    found = {profile.name: profile for profile in profiles}
    if not found or len(found) < len(profiles):
        given = ", ".join(profile.name for profile in profiles)
        raise UsageError(flag, given, "at least one profile, and names of their own (model_copy) where several")
    return found


def _check_count(flag: str, given: int) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise UsageError(flag, given, "a whole number of at least 1")
