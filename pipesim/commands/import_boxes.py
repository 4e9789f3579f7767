"""`pipesim import topo | p2p | nccl-tests`: what people paste of their box becomes a hardware profile."""

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pipesim.commands.shared import Json, Output, emit_document, import_app, note
from pipesim.errors import UsageError
from pipesim.profiles.hardware import HardwareProfile, PeerLinks
from pipesim.profiles.names import box_name
from pipesim.profiles.store import available, check_hardware_document, load_hardware
from pipesim.units import format_quantity, parse_quantity

DEFAULT_BASE = "rtx-pro-6000-x8"
"""For files that name no GPU."""

File = Annotated[Path, typer.Argument(help="File to read.")]
Files = Annotated[list[Path], typer.Argument(help="Files to read.")]
Base = Annotated[
    str | None,
    typer.Option(
        "--base",
        help="Hardware profile with the same GPUs; all that is not read is its "
        f"(default: by the GPU that the file names, else {DEFAULT_BASE}).",
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="Name of the new profile (default: the file's).")]

Document = dict[str, Any]


@import_app.command("topo")
def import_topo(
    file: File,
    base: Base = None,
    name: Name = None,
    section: Annotated[
        str | None, typer.Option("--section", help="Which matrix of a file with several: letter, place or title.")
    ] = None,
    uplink: Annotated[
        str | None, typer.Option("--uplink", help="Bandwidth of a switch upwards (default: that of one GPU's link).")
    ] = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Read `nvidia-smi topo -m`: sockets, switches with the uplink their GPUs share, NVLink.

    Example: pipesim import topo topo.txt --base rtx-pro-6000-x8 -o my-box.toml
    """
    from pipesim.importers.topo import read_topo  # noqa: PLC0415 - only this command reads such files

    base = _base(base, [file])
    below = load_hardware(base)
    shape = read_topo(file, section)
    speed = below.peer_links.same_group_bandwidth if uplink is None else _bandwidth("--uplink", uplink)
    topology: Document = {"kind": shape.kind, "groups": shape.groups, "sockets": shape.sockets}
    if shape.switches or below.topology.switches:
        topology["switches"] = [{"gpus": gpus, "uplink": format_quantity(speed, "B/s")} for gpus in shape.switches]
    topology["source"] = "imported-topology"
    text = f"nvidia-smi topo -m, {file.name}" + (f', "{shape.title}"' if shape.title else "")
    if shape.switches:
        text += f"; uplinks of {format_quantity(speed, 'B/s')}, " + (
            "as given" if uplink else "the rate of one GPU's link, not measured"
        )
    if bool(shape.nvlink) != (below.topology.kind == "nvlink"):
        given, wanted = ("NVLink", "PCIe alone") if shape.nvlink else ("no NVLink", "NVLink")
        note(f"{file.name} has {given} and {base} has {wanted}: give the --base with these links, or their rates")
    changes = {"topology": topology, "sources": {"imported-topology": {"basis": "measured", "text": text}}}
    _emit(base, below, shape.gpus, name or _slug(shape.title or file.stem), changes, output, as_json)


@import_app.command("p2p")
def import_p2p(file: File, base: Base = None, name: Name = None, output: Output = None, as_json: Json = False) -> None:
    """Read p2pBandwidthLatencyTest or simpleP2P: bandwidths within and across groups, staging, peer access.

    Example: pipesim import p2p p2pBandwidthLatencyTest.txt --base rtx-4090-x4
    """
    from pipesim.importers.p2p import links_of, read_p2p  # noqa: PLC0415 - only this command reads such files

    base = _base(base, [file])
    below = load_hardware(base)
    found = links_of(read_p2p(file))
    for text in found.notes:
        note(f"{file.name}: {text}")
    links: Document = {"source": "imported-p2p"}
    if found.peer_access is not None:
        links["peer_access"] = found.peer_access
    for key in ("same_group_bandwidth", "cross_group_bandwidth", "staged_bandwidth"):
        if (value := getattr(found, key)) is not None:
            links[key] = format_quantity(_rounded(value), "B/s")
    if found.staged_latency is not None:
        links["staged_launch"] = format_quantity(_rounded(below.peer_links.launch + found.staged_latency), "s")
    parts = [f"p2pBandwidthLatencyTest, {file.name}"]
    if found.latency is not None:
        parts.append(f"a small write takes {found.latency * 1e6:.3g} us with peer access")
    fields = [key for key in PeerLinks.model_fields if key not in links]
    if fields:
        parts.append(f"{', '.join(fields)} of {base}")
    sources = {"imported-p2p": {"basis": "measured", "text": "; ".join(parts)}}
    changes: Document = {"peer_links": links, "sources": sources}
    if found.groups and found.groups != below.topology.groups:
        changes["topology"] = {"groups": found.groups, "source": "imported-p2p"}
    _emit(base, below, found.gpus, name or _slug(file.stem), changes, output, as_json)


@import_app.command("nccl-tests")
def import_nccl_tests(
    files: Files, base: Base = None, name: Name = None, output: Output = None, as_json: Json = False
) -> None:
    """Read all_reduce_perf and its siblings, text or -J JSON: one fitted curve per collective and number of GPUs.

    Example: pipesim import nccl-tests all_reduce_8.txt all_gather_8.json --base h100-sxm-x8
    """
    from pipesim.calibration.box_files import curves_from_nccl_tests  # noqa: PLC0415 - brings scipy
    from pipesim.calibration.write import curve_texts, source_key  # noqa: PLC0415

    base = _base(base, files)
    below = load_hardware(base)
    found = curves_from_nccl_tests(files, below)
    fits = found.fits
    for text in found.left_out:
        note(f"not needed: {text}")
    if not fits:
        raise UsageError("FILES", ", ".join(map(str, files)), "a test of all_reduce or all_gather among them")
    curves = [fit.curve.model_copy(update={"source": source_key(fit)}) for fit in fits]
    gpus = max(below.gpus, *(curve.ranks for curve in curves))
    changes = {
        "collectives": [curve.model_dump(mode="json", exclude_none=True, exclude_defaults=True) for curve in curves],
        "sources": {key: {"basis": "fitted", "text": text} for key, text in curve_texts(fits).items()},
    }
    _emit(base, below, gpus, name or _slug(files[0].stem), changes, output, as_json)


def _base(given: str | None, files: Sequence[Path]) -> str:
    """Returns the profile to lay the new one over: the one given, or that of the GPU that the files name."""
    from pipesim.importers.gpu_names import boxes_named, hosts_named, text_of  # noqa: PLC0415 - as above

    text = text_of(files)
    named = boxes_named(text, available("hardware"))
    hosts = hosts_named(text)
    if len(hosts) > 1:
        note(f"the ranks lie on {len(hosts)} hosts ({', '.join(hosts[:4])}): the curve is one across nodes")
    if given is not None:
        if named and box_name(given).gpu not in {box_name(name).gpu for name in named} and "." not in given:
            note(f"the file names the GPU of {' and '.join(named)}, --base is {given}")
        return given
    if len(named) > 1:
        raise UsageError("--base", "nothing", f"one of {', '.join(named)}, whose GPUs are all named in the file,")
    if named:
        note(f"laid over {named[0]}, which has the GPU that the file names; --base chooses another")
    return named[0] if named else DEFAULT_BASE


def _emit(
    base: str, below: HardwareProfile, gpus: int, name: str, changes: Document, output: Path | None, as_json: bool
) -> None:
    """Prints or writes a profile that lays `changes` over its base."""
    changes = {key: _listed(value) for key, value in changes.items()}
    if gpus != below.gpus:
        topology = {"groups": [list(range(gpus))], "sockets": [], "switches": [], "source": below.topology.source}
        changes["topology"] = topology | changes.get("topology", {})
    document = {
        "schema_version": 1,
        "extends": _from_there(base, output),
        "name": name,
        "description": f"{gpus}x {below.gpu.name}, imported over {below.name}",
        "gpus": gpus,
        **changes,
    }
    check_hardware_document(document, output or Path(f"{name}.toml"))
    emit_document(
        document, "hardware", f"Laid over the hardware profile {base}: what is not here is its.", output, as_json
    )


def _from_there(base: str, output: Path | None) -> str:
    """Returns a base as the new file names it: a path as seen from its folder."""
    folder = output.parent if output else Path()
    return os.path.relpath(base, folder) if base.endswith(".toml") else base


def _listed(value: Any) -> Any:
    """Returns a value with lists in place of tuples, as files have them."""
    if isinstance(value, dict):
        return {key: _listed(part) for key, part in value.items()}
    return [_listed(part) for part in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def _rounded(value: float) -> float:
    return float(f"{value:.4g}") if math.isfinite(value) else value


def _bandwidth(flag: str, given: str) -> float:
    try:
        return parse_quantity(given, "B/s")
    except ValueError:
        raise UsageError(flag, given, 'a bandwidth such as "56.4 GB/s"') from None


def _slug(text: str) -> str:
    """Returns a name for a profile: lower case, words joined by dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")[:40].strip("-") or "my-box"
