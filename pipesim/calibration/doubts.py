"""Which fitted classes look as if their rows measured something else than what they are priced as."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from pipesim.calibration.fit import KernelFit, kernel_seconds
from pipesim.importers.kernel_tables import l2_bytes
from pipesim.profiles.hardware import Gpu

LEAST_REACHED = 0.15
"""Share of the roofline below which no large kernel of an engine is known to stay."""
FULL_BLOCKS = 8192
"""Tokens from which experts' row blocks are mostly full."""
SIBLINGS_APART = 2.0
"""Factor between the times of one kernel class in two stacks from which it is taken for another kernel."""


def doubts(fits: Sequence[KernelFit], gpu: Gpu) -> tuple[str, ...]:
    """Returns a sentence for every class whose rows imply rates that such kernels do not have, or its sibling has not.

    A form of a kernel that is not the priced one shows so: charged with less work than it does it seems to reach little
    of the peak, charged with more it beats the datasheet, and either way it differs from its class in another stack.
    """
    found = []
    for fit in fits:
        reached = _reached(fit, gpu)
        if reached > 1.0 or reached < LEAST_REACHED:
            found.append(f"{fit.name}: its rows imply {reached:.0%} of the peak")
    for one, other in combinations(fits, 2):
        if one.name.partition("@")[0] == other.name.partition("@")[0]:
            ratio = _times(one, other, gpu)
            if not 1.0 / SIBLINGS_APART < ratio < SIBLINGS_APART:
                found.append(f"{one.name} takes {ratio:.2g} times as long as {other.name} for the same work")
    return tuple(found)


def _reached(fit: KernelFit, gpu: Gpu) -> float:
    """Returns the share of the roofline, its memory at the clock it runs at, that the best twentieth of rows reach.

    Traffic that the L2 cache may hold is not counted, nor rows of experts in blocks that are largely padding.
    """
    cases = fit.cases
    read_once = cases.ceiling <= 1.0 and not cases.form.get("weight_reread")
    cold = (cases.bytes > l2_bytes(cases.table.system)) & read_once
    traffic = np.where(cold, cases.bytes, 0.0) / gpu.most_memory
    ideal = np.maximum(cases.flops / gpu.tensor_rate[cases.rate], traffic / gpu.memory_bandwidth)
    full = (cases.sizes >= FULL_BLOCKS) | (not fit.name.startswith("moe_"))
    return float(np.quantile(ideal[full] / cases.seconds[full], 0.95))


def _times(one: KernelFit, other: KernelFit, gpu: Gpu) -> float:
    """Returns the median ratio of two classes' times over the rows of both that are long enough to say something."""
    times = [
        np.array([kernel_seconds(rows, gpu, fit.constants) for fit in (one, other)])
        for rows in (one.cases, other.cases)
    ]
    both = np.concatenate(times, axis=1)
    return float(np.median(both[0] / both[1]))
