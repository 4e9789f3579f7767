"""Makes a file of measured runs out of what another tool measured, and lists what its file does not say."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from pipesim.engine_settings import EngineSettings
from pipesim.errors import ProfileError, UsageError
from pipesim.importers.bench.record import BenchRun, tidy
from pipesim.importers.supplied import Supplied
from pipesim.measured import ENGINE_FLAGS, PIPELINE_FLAGS, Runs
from pipesim.profiles.model import ModelProfile
from pipesim.profiles.names import DEFAULT_HARDWARE, DEFAULT_MODEL, base_of, box_name
from pipesim.profiles.store import available, load_hardware, load_model, matching_model, validated


@dataclass(frozen=True)
class Imported:
    """Runs of one or more files, and for each of them a line that says what was assumed."""

    runs: Runs
    lines: tuple[str, ...]


Found = tuple[Path, str, BenchRun]
"""A run with its file and its place in it."""


def run_file(found: Iterable[Found], supplied: Supplied, weights: Callable[[ModelProfile], float]) -> Imported:
    """Returns the measured runs of some records, with what was assumed; `weights` gives the bytes of a model.

    Raises:
        PipesimError: when a record's model or GPU is not known and none was supplied, or a flag contradicts it.
    """
    documents, lines = [], []
    assumed: dict[str, None] = {}
    taken: set[str] = set()
    for path, where, record in found:
        document = _document(path, where, record, supplied, weights)
        document["id"] = _free(document["id"], taken)
        documents.append(document)
        assumed |= dict.fromkeys(document["assumed"])
        lines.append(_line(document, where, record))
    whole: dict[str, Any] = {"schema_version": 1, "run": documents}
    if assumed:
        whole["assumption"] = f"what the imported files do not state: {', '.join(assumed)}"
    return Imported(validated(Runs, whole, Path("the imported runs")), tuple(lines))


def _document(
    path: Path, where: str, record: BenchRun, supplied: Supplied, weights: Callable[[ModelProfile], float]
) -> dict[str, Any]:
    assumed = list(record.assumed)
    place = f"{path}: {where}" if where else str(path)
    model = _model(record.models, supplied, place)
    hardware = _hardware(record.gpu, record.plan.get("tp", 1) * record.plan.get("pp", 1), supplied, place)
    assumed += ["model"] * (not record.models) + ["hardware"]
    name = _settled("engine.name", record.engine, record, supplied.engine, place, assumed)
    engine: dict[str, Any] = {**record.engine, "name": EngineSettings().name if name is None else name}
    plan = _plan(record, supplied, weights(load_model(model)), hardware, place, assumed)
    workload = _workload(record, supplied, place, assumed)
    flags = ENGINE_FLAGS[engine["name"]] + PIPELINE_FLAGS[engine["name"]] * (plan["pp"] > 1)
    assumed += [f"engine.{flag}" for flag in flags if flag not in engine]
    measured = dict(record.measured)
    split_given = bool({"input_len", "output_len"} & supplied.workload.keys())
    if split_given and "tokens_per_request" in record.totals:
        measured["output_tokens_per_s"] = tidy(measured["request_throughput_per_s"] * workload["output_len"])
    said = "; ".join(part for part in (record.unjudged, *record.notes) if part)
    return {
        "id": f"{_slug(supplied.prefix or path.stem)}-{_split_name(plan)}-{_load_name(workload)}",
        "role": supplied.role or ("reported" if record.unjudged else "validation"),
        "source": ", ".join(part for part in (record.tool, path.name, where, record.date) if part),
        "model": model,
        "hardware": hardware,
        "plan": plan,
        "engine": engine,
        "workload": workload,
        "assumed": list(dict.fromkeys(assumed)),
        "measured": measured,
        "tolerance": dict.fromkeys(measured, supplied.tolerance),
        **({"note": said} if said else {}),
    }


def _plan(
    record: BenchRun, supplied: Supplied, weights: float, hardware: str, place: str, assumed: list[str]
) -> dict[str, Any]:
    """Returns the split: stated, supplied, or else the engines' one stage and all GPUs of the box as its TP group.

    Where the stated TP group could not hold the weights, it had stages: as many as the box has room for.
    """
    plan = dict(record.plan)
    box = load_hardware(hardware)
    for key, given in (("pp", supplied.pp), ("tp", supplied.tp)):
        if (degree := _settled(f"plan.{key}", record.plan, record, given, place, assumed)) is not None:
            plan[key] = degree
    room = box.gpus // plan.get("replicas", 1)
    if "pp" not in plan:
        one_is_enough = weights < plan.get("tp", room) * box.gpu.memory
        plan["pp"] = 1 if one_is_enough else max(1, room // plan.get("tp", room))
    plan.setdefault("tp", max(1, room // plan["pp"]))
    if "ep" not in plan:
        assumed.append("plan.ep")
    return plan


def _workload(record: BenchRun, supplied: Supplied, place: str, assumed: list[str]) -> dict[str, Any]:
    defaults = {"concurrency": 32, "input_len": 512, "output_len": 256, "random_range_ratio": 0.0}
    given = supplied.workload
    load = dict(record.workload)
    whole = record.totals.get("tokens_per_request")
    if whole is not None and len({"input_len", "output_len"} & given.keys()) == 1:
        known, other = ("input_len", "output_len") if "input_len" in given else ("output_len", "input_len")
        given[other] = max(1, round(whole) - given[known])
    for key in dict.fromkeys((*defaults, *given)):
        value = _settled(f"workload.{key}", load, record, given.get(key), place, assumed)
        load[key] = defaults[key] if value is None else value
    if "num_prompts" not in load and "waves" not in load:
        assumed.append("workload.num_prompts")
    return load


def _settled(key: str, stated: Mapping[str, Any], record: BenchRun, given: Any, place: str, assumed: list[str]) -> Any:
    """Returns what a flag gives or a file states, and notes as assumed what the file does not state.

    Raises:
        UsageError: when they are two different things; an estimate of the reader's gives way to the flag.
    """
    table, _, name = key.partition(".")
    value = stated.get(name)
    if name not in stated:
        assumed.append(key)
    if given is None:
        return value
    if value is not None and key not in record.assumed and value != given:
        flag = "--engine" if table == "engine" else f"--{name.replace('_', '-')}"
        raise UsageError(flag, given, f"{value}, which {place} states, or no {flag}")
    return given


def _model(stated: tuple[str, ...], supplied: Supplied, place: str) -> str:
    """Returns the model profile: the one supplied, that of a stated name, or the default where none is stated."""
    default = None if stated else DEFAULT_MODEL
    found = supplied.model or default or next(filter(None, map(matching_model, stated)), None)
    return found or _no_profile("model", stated[0], place)


def _hardware(stated: str | None, gpus: int, supplied: Supplied, place: str) -> str:
    default = DEFAULT_HARDWARE
    found = supplied.hardware or (default if stated is None else matching_hardware(stated, default, gpus))
    return found or _no_profile("hardware", str(stated), place)


def _no_profile(kind: Literal["model", "hardware"], stated: str, place: str) -> NoReturn:
    wanted = f"--{kind} with the profile of it (there are: {', '.join(sorted(available(kind)))})"
    raise ProfileError(place, kind, f'"{stated}", which no {kind} profile is of,', wanted)


def matching_hardware(stated: str, default: str, gpus: int = 1) -> str | None:
    """Returns the hardware profile of a GPU's name, with at least so many GPUs if there is one; None for no one.

    Words behind the GPU, such as the cluster's, are passed over. Of several profiles the default comes first.
    """
    words = re.split(r"[\s_-]+", stated.strip())
    names = available("hardware")
    for count in range(len(words), 0, -1):
        wanted = box_name("-".join(words[:count]))
        if wanted.gpu == box_name(default).gpu:
            return default
        if (name := base_of(wanted._replace(gpus=wanted.gpus or gpus), names)) is not None:
            return name
    return None


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-") or "run"


def _split_name(plan: Mapping[str, Any]) -> str:
    parts = [f"{key}{plan[key]}" for key in ("tp", "pp", "ep", "dcp") if key == "tp" or plan.get(key, 1) > 1]
    return "-".join(parts + ["dp-attention"] * bool(plan.get("dp_attention")))


def _load_name(workload: Mapping[str, Any]) -> str:
    rate = workload.get("request_rate")
    return f"rate{rate:g}" if rate is not None else f"c{workload['concurrency']}"


def _free(name: str, taken: set[str]) -> str:
    """Returns a name that is not taken yet, numbered if need be, and takes it."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    taken.add(free)
    return free


def _line(document: Mapping[str, Any], where: str, record: BenchRun) -> str:
    """Returns one line for a person: what the file does not state of a run and what was taken for it."""
    told, defaults = [], []
    for key in document["assumed"]:
        table, _, name = key.rpartition(".")
        value = document[table].get(name) if table else document[name]
        if value is None:
            defaults.append(name)
        else:
            told.append(f"{table if name == 'name' else name} {value}")
    text = f"{document['id']} ({', '.join(part for part in (record.tool, where) if part)}): "
    text += f"assumed {', '.join(told)}" if told else "everything is stated"
    if defaults:
        text += f"; by default {', '.join(defaults)}"
    return text + (f"; {document['note']}" if "note" in document else "")
