"""What a box was never measured at, taken from its nearest measured relative and labelled so.

Carried over are efficiencies, fractions of a GPU's own peak, with floors as they are; never the time of a kernel. Of a
collective the latencies are kept and the bandwidths scaled by that of the links.
"""

import math
from typing import Any

from pydantic import Field

from pipesim.profiles.base import Frozen
from pipesim.units import parse_quantity

TABLES = ("peer_links", "topology", "memory_reserve", "host", "measured_with")
"""Not `uncertainty`: what whole runs on one box have shown says nothing of another."""
MEAN_ABSOLUTE_PER_STD = math.sqrt(2 / math.pi)
"""Of a normal distribution."""


class Borrowing(Frozen):
    """The `[borrows]` table of a hardware profile; `borrows = "NAME"` stands for its `profile` alone."""

    profile: str
    """The measured relative."""
    collectives: str | None = None
    """The relative with the same kind of links, where that is another one."""
    compute: float | dict[str, float] = 1.0
    """Factor on every borrowed compute efficiency, or one for each key of gpu.tensor_rate."""
    memory: float = Field(default=1.0, gt=0)
    """Factor on every borrowed memory efficiency."""
    log_std: float = Field(default=0.2, ge=0, le=2)
    """Log standard deviation between relatives, added to the error of every borrowed constant.

    Between the shipped fits of H100 and H200 memory efficiencies differ by 0.10 and compute efficiencies by 0.25 (root
    mean square of the logarithms over kernel classes), between L40S and RTX PRO 6000 by 0.15 and 0.36.
    """
    text: str = ""
    """Where the factors come from."""

    def compute_factor(self, rate: str) -> float:
        """Returns the factor on compute efficiencies at one rate."""
        return self.compute.get(rate, 1.0) if isinstance(self.compute, dict) else self.compute


Document = dict[str, Any]


def with_borrowed(own: Document, borrowing: Borrowing, relative: Document, linked: Document) -> Document:
    """Returns a document with what it lacks: kernel classes and tables of a relative, curves of `linked`.

    A class that the box has constants of, for whichever stack, is its own, and so are collectives over as many ranks.
    Relatives are valid documents; `own` need
    not be, and what is wrong in it is left for validation to name.
    """
    lender = _Lender(own, borrowing)
    for key in TABLES:
        if key in relative and (key not in own or (key != "topology" and isinstance(own[key], dict))):
            lender.table(key, relative)
    if isinstance(own.get("gpu"), dict):
        lender.efficiencies(relative)
    lender.curves(linked, borrowing.collectives or borrowing.profile)
    return lender.result


class _Lender:
    def __init__(self, own: Document, borrowing: Borrowing) -> None:
        self.result = dict(own)
        self.borrowing = borrowing
        self.result["sources"] = dict(own["sources"]) if isinstance(own.get("sources"), dict) else {}

    def _source(self, key: str, owner: Document, name: str, basis: str | None = "datasheet", note: str = "") -> str:
        """Files the source of a borrowed constant; returns its key."""
        source = owner["sources"][key]
        text = f"borrowed from {name}{note}: {source['text']}"
        own_key = f"borrowed-{key}"
        self.result["sources"].setdefault(own_key, {"basis": basis or source["basis"], "text": text})
        return own_key

    def table(self, key: str, relative: Document) -> None:
        """The entries of a table as they are, their basis too; CPU times, of another CPU, as from a datasheet."""
        own = self.result.get(key, {})
        lent = {name: entry for name, entry in relative[key].items() if (key, name) != ("host", "engines")}
        self.result[key] = {**self._as_is(lent, relative, "source" in own), **own}

    def _as_is(self, table: Document, relative: Document, own_source: bool = False) -> Document:
        """Returns a table, and the tables in it, under sources of this box."""
        lent = {key: self._as_is(value, relative) if isinstance(value, dict) else value for key, value in table.items()}
        if "source" in table and not own_source:
            basis = "datasheet" if "eager_launch" in table else None
            lent["source"] = self._source(table["source"], relative, self.borrowing.profile, basis)
        return lent

    def efficiencies(self, relative: Document) -> None:
        own = self.result.get("efficiency", {})
        rates = self.result["gpu"].get("tensor_rate", {})
        if not isinstance(own, dict) or not isinstance(rates, dict):
            return
        classes = {key.partition("@")[0] for key in own}
        borrowed = {
            key: self._efficiency(entry, relative)
            for key, entry in relative.get("efficiency", {}).items()
            if key.partition("@")[0] not in classes and entry.get("rate", "bf16") in rates
        }
        self.result["efficiency"] = {**own, **borrowed}

    def _efficiency(self, entry: Document, relative: Document) -> Document:
        borrowing = self.borrowing
        compute = borrowing.compute_factor(entry.get("rate", "bf16"))
        note = f" ({borrowing.text})" if borrowing.text else ""
        changed = {
            **entry,
            "compute": min(1.0, entry["compute"] * compute),
            "memory": min(self._most_memory(), entry["memory"] * borrowing.memory),
            "fit_error": self._widened(entry["fit_error"]),
            "source": self._source(entry["source"], relative, borrowing.profile, note=note),
        }
        # The range is of sizes, seen in seconds: a slower memory takes longer over the largest of them.
        slower = _ratio(relative, self.result, "gpu", "memory_bandwidth")
        if "measured_seconds" in entry:
            low, high = (parse_quantity(value, "s") * slower for value in entry["measured_seconds"])
            changed["measured_seconds"] = [f"{low!r} s", f"{high!r} s"]
        return changed

    def _most_memory(self) -> float:
        """The largest memory efficiency that the clock of the box's own memory allows."""
        gpu = {"memory_clock_bandwidth": self.result["gpu"].get("memory_bandwidth")} | self.result["gpu"]
        return min(1.0, _ratio({"gpu": gpu}, self.result, "gpu", "memory_clock_bandwidth", "memory_bandwidth"))

    def curves(self, linked: Document, name: str) -> None:
        """Curves between links of one kind; NVLink and PCIe have nothing to tell each other."""
        topologies = (self.result.get("topology"), linked.get("topology"))
        if any(not isinstance(topology, dict) for topology in topologies):
            return
        kinds = {topology.get("kind") == "nvlink" for topology in topologies if topology}
        if len(kinds) > 1 or not linked.get("collectives"):
            return
        own = self.result.get("collectives", [])
        if not isinstance(own, list):
            return
        known = {(curve.get("op"), curve.get("ranks")) for curve in own if isinstance(curve, dict)}
        lent = [curve for curve in linked["collectives"] if (curve["op"], curve["ranks"]) not in known]
        group = len(linked["topology"]["groups"][0])
        self.result["collectives"] = [*own, *(self._curve(curve, group, linked, name) for curve in lent)]
        table = linked.get("all_reduce_range")
        if lent and table and "all_reduce_range" not in self.result and self._has_gpus_of(table, linked):
            self.result["all_reduce_range"] = {**table, "source": self._source(table["source"], linked, name, None)}

    def _has_gpus_of(self, spread: Document, linked: Document) -> bool:
        """Whether the published hosts behind a range have this box's GPU: it says nothing of any other."""
        own = self.result.get("gpu")
        name = str(own.get("name", "")) if isinstance(own, dict) else ""
        return name.startswith(spread["gpu"]) if spread.get("gpu") else name == linked["gpu"]["name"]

    def _curve(self, curve: Document, group: int, linked: Document, name: str) -> Document:
        key = "same_group_bandwidth" if curve["ranks"] <= group else "cross_group_bandwidth"
        own_links = self.result.get("peer_links")
        if isinstance(own_links, dict) and own_links.get("peer_access") is False:
            key = "staged_bandwidth"
        faster = _ratio(self.result, linked, "peer_links", key)
        lines = [
            {**line, "bandwidth": f"{parse_quantity(line['bandwidth'], 'B/s') * faster!r} B/s"}
            for line in curve["lines"]
        ]
        note = "" if faster == 1.0 else f", bandwidths scaled by {faster:.3g} as its links"
        source = self._source(curve["source"], linked, name, note=note)
        return {**curve, "own": False, "lines": lines, "fit_error": self._widened(curve["fit_error"]), "source": source}

    def _widened(self, fit_error: float) -> float:
        return min(1.0, math.hypot(fit_error, self.borrowing.log_std * MEAN_ABSOLUTE_PER_STD))


def _ratio(one: Document, other: Document, table: str, key: str, other_key: str = "") -> float:
    """Returns the quotient of one bandwidth of two boxes; 1 where one is not to be read, which validation names."""
    try:
        given = one[table][key], other[table][other_key or key]
        first, second = (parse_quantity(value, "B/s") for value in given)
        return first / second
    except (ValueError, KeyError, TypeError, ZeroDivisionError):
        return 1.0
