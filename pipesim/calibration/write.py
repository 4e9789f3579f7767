"""Fitted constants into a hardware profile: comments kept, all of it or nothing."""

import difflib
import os
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipesim.calibration.curves import CurveFit
from pipesim.calibration.fit import KernelFit
from pipesim.calibration.runs import RunFit
from pipesim.errors import ProfileError
from pipesim.importers import STACKS
from pipesim.importers.kernel_tables import PACKAGE, Table, extra, package_version
from pipesim.profiles.hardware import CollectiveCurve, Efficiency, HardwareProfile
from pipesim.profiles.store import check_hardware_document, read_toml
from pipesim.units import format_quantity

Fit = KernelFit | CurveFit
OPTIONAL = ("weight_reread", "head_block", "kv_splits", "longest_split", "most_splits", "split_overlap")
"""Fields of Efficiency that are left out where they have their default."""


def put(path: Path, new: str, dry_run: bool = False) -> str:
    """Returns the unified diff to a new text of a profile, and puts it into the file unless dry or empty.

    Raises:
        ProfileError: when the file cannot be written, and is left as it was.
    """
    old = path.read_text(encoding="utf-8") if path.is_file() else ""
    names = path.name, f"{path.name} (calibrated)"
    changes = "".join(difflib.unified_diff(old.splitlines(True), new.splitlines(True), *names))
    if changes and not dry_run:
        _replace_text(path, new)
    return changes


def _replace_text(path: Path, text: str) -> None:
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".tmp")
    except OSError as error:
        raise ProfileError(path.parent, "", error.strerror or "no way to write", "a folder to write into") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(path.stat().st_mode)
        os.replace(name, path)  # noqa: PTH105 - the call is the point
    except OSError as error:
        raise ProfileError(path, "", error.strerror or "no way to write", "a file that can be written") from None
    finally:
        Path(name).unlink(missing_ok=True)


def source_text(fit: Fit) -> str:
    """Returns what a profile says of the origin of a fit: package, version, system, op, stack, rows and errors."""
    errors = fit.errors
    table: Table | None = fit.cases.table if isinstance(fit, KernelFit) else fit.table
    rows = f"{fit.cases.rows}, {len(fit.cases)} rows" if isinstance(fit, KernelFit) else f"{fit.points} sizes"
    note = "".join(f"; {text}" for text in fit.remarks) if isinstance(fit, KernelFit) else ""
    origin = f"{PACKAGE} {package_version()}, {table}" if table else fit.origin if isinstance(fit, CurveFit) else ""
    return (
        f"{origin}: {rows}; mean error {_percent(errors.mean)}, on every second size "
        f"left out {_percent(errors.held_out)}, on each size left out {_percent(errors.one_out)}{note}"
    )


def source_key(fit: Fit) -> str:
    """Returns the row of [sources] that a fit fills; the curves of one table share it."""
    if isinstance(fit, KernelFit):
        return f"kernels-{fit.name.replace('@', '-')}"
    return f"collectives-{fit.table.stack if fit.table else 'nccl-tests'}"


def with_host(path: Path, fit: RunFit) -> str:
    """Returns a hardware profile with an engine's CPU times as whole runs give them. Raises ProfileError."""
    tomlkit = extra("tomlkit")
    host = check_hardware_document(read_toml(path), path).host
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    engines = _child(tomlkit, _child(tomlkit, document, "host"), "engines")
    text = f"fitted to whole runs on this host: {', '.join(fit.figures)}"
    for engine, factors in ((engine, factors) for engine, factors in fit.factors.items() if factors):
        source = f"host-{engine}"
        entries = {name: float(f"{host.fitted(name, engine)[0] * factor:.3g}") for name, factor in factors.items()}
        _update(tomlkit, _child(tomlkit, engines, engine), {**entries, "source": source})
        _update(
            tomlkit, _child(tomlkit, _child(tomlkit, document, "sources"), source), {"basis": "fitted", "text": text}
        )
    new = str(tomlkit.dumps(document))
    check_hardware_document(tomllib.loads(new), path)
    return new


def with_fits(path: Path, fits: Sequence[Fit]) -> str:
    """Returns a hardware profile with fitted constants and their sources.

    Raises:
        ProfileError: when the file cannot be read, or would not be a valid profile with these constants.
    """
    tomlkit = extra("tomlkit")
    before = check_hardware_document(read_toml(path), path)
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    efficiency = document.setdefault("efficiency", tomlkit.table(True))
    kernels = [fit for fit in fits if isinstance(fit, KernelFit)]
    keys = {fit.name: _own_key(before, fit) for fit in kernels}
    for kernel in kernels:
        _update(tomlkit, _child(tomlkit, efficiency, kernel.name), _efficiency_entries(kernel, keys[kernel.name]))
    curves = [
        fit
        for fit in fits
        if isinstance(fit, CurveFit) and not _host_measured(before, fit.curve, own=fit.table is None)
    ]
    for fit in curves:
        _update(tomlkit, _curve_table(tomlkit, document, fit.curve), _curve_entries(fit.curve, source_key(fit)))
    sources = document.setdefault("sources", tomlkit.table(True))
    texts = {keys[fit.name]: source_text(fit) for fit in kernels} | curve_texts(curves)
    for key, text in texts.items():
        _update(tomlkit, _child(tomlkit, sources, key), {"basis": "fitted", "text": text})
    engines = {fit.cases.table.stack: fit.cases.table.version for fit in kernels}
    versions = _child(tomlkit, document, "measured_with")
    _update(tomlkit, versions, {stack: engines[stack] for stack in STACKS[:2] if stack in engines})
    used = set(_sources_used(document))
    for key in [key for key in sources if key not in used]:
        sources.remove(key)
    new = str(tomlkit.dumps(document)).rstrip("\n") + "\n"
    check_hardware_document(tomllib.loads(new), path)
    return new


def _host_measured(profile: HardwareProfile, curve: CollectiveCurve, own: bool) -> bool:
    """Whether the profile has curves of this collective over so many ranks that come from the box, not from tables.

    A curve that is the box's own goes before any.
    """
    same = [entry for entry in profile.collectives if (entry.op, entry.ranks) == (curve.op, curve.ranks)]
    return not own and any(not profile.sources[entry.source].text.startswith("aiconfigurator") for entry in same)


def _child(tomlkit: Any, parent: Any, key: str) -> Any:
    """Returns the table of a key; a new one takes over the comments that follow its predecessor."""
    if key not in parent:
        last = parent[list(parent)[-1]] if len(parent) else None
        tail = _cut_tail(last) if last is not None else []
        parent[key] = tomlkit.table()
        parent[key].value.body.extend(tail)
    return parent[key]


def _curve_table(tomlkit: Any, document: Any, curve: CollectiveCurve) -> Any:
    entries = document.setdefault("collectives", tomlkit.aot())
    key = (curve.op, curve.ranks, curve.launch, curve.implementation)
    for entry in entries:
        if (entry["op"], entry["ranks"], entry["launch"], entry["implementation"]) == key:
            return entry
    last = entries[-1] if len(entries) else None
    tail = _cut_tail(last) if last is not None else []
    if last is not None:
        last.value.body.append((None, tomlkit.nl()))
    entries.append(tomlkit.table())
    entries[-1].value.body.extend(tail)
    return entries[-1]


def _cut_tail(table: Any) -> list[Any]:
    """Takes the blank lines and comments behind a table's last key, which belong to what follows it."""
    last = table[-1] if isinstance(table, list) else table
    body: list[Any] = getattr(getattr(last, "value", None), "body", [])
    tail: list[Any] = []
    while body and body[-1][0] is None:
        tail.insert(0, body.pop())
    return tail


def _update(tomlkit: Any, table: Any, entries: Mapping[str, object]) -> None:
    """Sets changed entries only, so that comments behind the others stay; None removes one."""
    tail = _cut_tail(table)
    for key, value in entries.items():
        if value is None:
            if key in table:
                table.remove(key)
        elif key not in table or table[key] != value:
            table[key] = _inline(tomlkit, value)
    table.value.body.extend(tail)


def _inline(tomlkit: Any, value: object) -> object:
    if isinstance(value, Mapping):
        inline = tomlkit.inline_table()
        inline.update(value)
        return inline
    if isinstance(value, list):
        array = tomlkit.array()
        array.extend(_inline(tomlkit, item) for item in value)
        return array
    return value


def _efficiency_entries(fit: KernelFit, source: str) -> dict[str, object]:
    entry = fit.efficiency(source)
    optional = {name: getattr(entry, name) for name in OPTIONAL}
    return {
        "rate": entry.rate if entry.rate != "bf16" else None,
        "compute": entry.compute,
        "memory": entry.memory,
        "overlap": entry.overlap,
        "floor": format_quantity(entry.floor, "s"),
        "split_token": format_quantity(entry.split_token, "s") if entry.split_token else None,
        **{name: None if value == Efficiency.model_fields[name].default else value for name, value in optional.items()},
        "measured_seconds": [format_quantity(value, "s") for value in entry.measured_seconds or ()],
        "fit_error": entry.fit_error,
        "log_std": entry.log_std,
        "source": source,
    }


def _curve_entries(curve: CollectiveCurve, source: str) -> dict[str, object]:
    return {
        "op": curve.op,
        "ranks": curve.ranks,
        "launch": curve.launch,
        "implementation": curve.implementation,
        "shape": curve.shape,
        "lines": [
            {"latency": format_quantity(line.latency, "s"), "bandwidth": format_quantity(line.bandwidth, "B/s")}
            for line in curve.lines
        ],
        "measured_bytes": [format_quantity(size, "B") for size in curve.measured_bytes],
        "own": curve.own or None,
        "fit_error": curve.fit_error,
        "log_std": curve.log_std,
        "source": source,
    }


def _own_key(profile: HardwareProfile, fit: KernelFit) -> str:
    """Returns the row of [sources] that an entry has for itself already, or a new one."""
    entry = profile.efficiency.get(fit.name)
    users = [other for other in profile.efficiency.values() if entry and other.source == entry.source]
    tabled = entry is not None and profile.sources[entry.source].text.startswith("aiconfigurator")
    return entry.source if entry is not None and tabled and len(users) == 1 else source_key(fit)


def curve_texts(curves: Sequence[CurveFit]) -> dict[str, str]:
    """Returns what a profile says of the origin of some curves, by `source_key`."""
    texts = {}
    for key in {source_key(fit): None for fit in curves}:
        same = [fit for fit in curves if source_key(fit) == key]
        errors = ", ".join(f"{fit.name} {_percent(fit.errors.held_out)}" for fit in same)
        if same[0].table is None:
            origin = "; ".join(sorted({fit.origin for fit in same}))
        else:
            table, points = same[0].table, same[0].points
            origin = (
                f"{PACKAGE} {package_version()}, {table}: {points} sizes per curve, message_size in elements of 2 B"
            )
        texts[key] = f"{origin}; error on every second size left out: {errors}"
    return texts


def _sources_used(node: object) -> Iterator[str]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key == "source" and isinstance(value, str):
                yield str(value)
            else:
                yield from _sources_used(value)
    elif isinstance(node, list):
        for value in node:
            yield from _sources_used(value)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"
