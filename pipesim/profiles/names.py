"""How people name boxes: "rtx-4090-x2", "4090 x2", "8xH100", "h100-sxm-2x8", "h100-sxm-x8-n2"."""

import re
from collections.abc import Iterable
from typing import NamedTuple

DEFAULT_MODEL, DEFAULT_HARDWARE = "kimi-k2.6", "rtx-pro-6000-x8"

ALIASES = {
    "4090": "rtx4090",
    "5090": "rtx5090",
    "a100": "a100sxm",
    "a100sxm4": "a100sxm",
    "b200": "b200sxm",
    "h100": "h100sxm",
    "h100sxm5": "h100sxm",
    "h200": "h200sxm",
    "6000pro": "rtxpro6000",
    "pro6000": "rtxpro6000",
    "rtx6000pro": "rtxpro6000",
    "rtxpro6000server": "rtxpro6000",
    "pro6000server": "rtxpro6000",
    "pro6000workstation": "rtxpro6000workstation",
    "rtx6000proworkstation": "rtxpro6000workstation",
    "pro6000maxq": "rtxpro6000maxq",
    "rtx6000promaxq": "rtxpro6000maxq",
    "rtxpro6000maxqworkstation": "rtxpro6000maxq",
}
"""Other names of a GPU, letters and digits alone, by what they stand for."""

FILLER = re.compile(r"\b(?:nvidia|geforce|tesla|blackwell|edition|generation|gpus?|[48]0gb|141gb|hbm[23]e?)\b")
COUNT_FIRST = re.compile(r"^(\d{1,3})x-?(?=.)")
NODES_OF = re.compile(r"-(\d{1,3})x(\d{1,3})(?=-|$)")
COUNT = re.compile(r"-?x(\d{1,3})(?=-|$)")
NODES = re.compile(r"-n(\d{1,3})$")
"""Counts have three digits at most: "rtx4090" is no box of 4090."""


class BoxName(NamedTuple):
    """What a name says: which GPU, how many in a node, how many nodes, and which variant of the profile."""

    gpu: str
    """Letters and digits alone."""
    gpus: int | None
    """In one node; None where it is not said."""
    nodes: int
    variant: str
    """What follows the count, such as "tuned"."""


def box_name(given: str) -> BoxName:
    """Returns what a name of a box says."""
    text = FILLER.sub("", re.sub(r"[\s_-]+", "-", given.strip().lower()))
    gpus, nodes, variant = None, 1, ""
    if found := COUNT_FIRST.match(text):
        gpus, text = int(found[1]), text[found.end() :]
    if found := NODES.search(text):
        nodes, text = int(found[1]), text[: found.start()]
    if found := NODES_OF.search(text):
        nodes, gpus = int(found[1]), int(found[2])
    elif found := COUNT.search(text):
        gpus = int(found[1])
    if found:
        text, variant = text[: found.start()], text[found.end() :].strip("-")
    gpu = re.sub(r"[^a-z0-9]", "", text)
    return BoxName(ALIASES.get(gpu, gpu), gpus, nodes, variant)


def canonical(base: str, gpus: int | None, nodes: int) -> str:
    """Returns the name of a box like `base` with `gpus`, or as many as it has, in each of so many nodes."""
    name = base
    if gpus is not None:
        found = COUNT.search(base)
        name = f"{base[: found.start()]}-x{gpus}{base[found.end() :]}" if found else f"{base}-x{gpus}"
    return name + (f"-n{nodes}" if nodes != 1 else "")


def base_of(wanted: BoxName, names: Iterable[str]) -> str | None:
    """Returns the profile that a box is cut or grown from: the same GPU and variant, the fewest GPUs that are enough.

    The largest where none has enough, and None where no profile has this GPU.
    """
    sized = [(parsed.gpus or 0, name) for name in names for parsed in [box_name(name)] if _same(parsed, wanted)]
    enough = [entry for entry in sized if entry[0] >= (wanted.gpus or 0)]
    return min(enough)[1] if enough else max(sized, default=(0, None))[1]


def _same(one: BoxName, other: BoxName) -> bool:
    return (one.gpu, one.variant, one.nodes) == (other.gpu, other.variant, 1)
