"""The price list: an operation in, its time, what binds it and what the number rests on out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from pipesim.cost.attention import latent_decode_work, partial_result_bytes, split_tokens
from pipesim.cost.collectives import across_nodes_seconds, curve_seconds, find_curve, schedule_seconds
from pipesim.cost.experts import activation_bytes, expert_work
from pipesim.cost.host import MESSAGES_PER_OBJECT, host_seconds
from pipesim.cost.relatives import relatives
from pipesim.cost.roofline import roofline_seconds
from pipesim.cost.transfers import send_recv_seconds
from pipesim.errors import MissingEvidence
from pipesim.ops import (
    Collective,
    Compute,
    Experts,
    HostWork,
    LatentDecode,
    Op,
    SendRecv,
    SideStream,
    SmallKernels,
    Work,
)
from pipesim.profiles.base import Basis
from pipesim.profiles.hardware import Efficiency, HardwareProfile, Implementation, LaunchMode

CONSTANTS_ALONE = "constants:"
"""Before a name in `CostModel.scale`: AllGathers are of the category "all_reduce", and have constants of their own."""

Bound = Literal["compute", "memory", "latency", "link", "host"]


class Cost(NamedTuple):
    """The price of one operation."""

    seconds: float
    bound: Bound
    basis: Basis
    extrapolated: bool = False
    """Whether the size lies outside the range that the constants were fitted to."""


@dataclass(frozen=True)
class CostModel:
    """Prices operations on one box in one launch mode."""

    hardware: HardwareProfile
    launch: LaunchMode
    all_reduce: tuple[Implementation, ...] = ("nccl",)
    """Implementations in the order in which the engine tries them."""
    peer_access: bool = True
    scale: Mapping[str, float] = field(default_factory=dict)
    """Factors on the price of operations, for what-if questions: a name moves all operations whose constants or whose
    category are called so, once where both are; `CONSTANTS_ALONE` before it, those of the constants."""
    stack: str = ""
    """The engine whose kernels run: constants under "kernel@stack" go before those under "kernel"."""
    ranks_per_node: int | None = None
    """Ranks of a stage on one node; None where no stage lies on several."""

    def price(self, op: Op) -> Cost:
        """Returns the price of one operation.

        Raises:
            MissingEvidence: when the hardware profile has no constants for the kernel.
        """
        price = self._price(op)
        if not self.scale:
            return price
        names = dict.fromkeys((op.constant, op.category, CONSTANTS_ALONE + op.constant))
        return price._replace(seconds=price.seconds * math.prod(self.scale.get(name, 1.0) for name in names))

    def work(self, op: Op) -> Work:
        """Returns the arithmetic and the traffic that an operation is priced by; none where its work does not matter.

        Raises:
            MissingEvidence: when the hardware profile has no constants for the kernel.
        """
        match op:
            case Compute():
                return op.work
            case Experts():
                flops, size = expert_work(op, self._efficiency(op.kernel).weight_reread)
                return Work(flops, size + activation_bytes(op))
            case LatentDecode():
                efficiency = self._efficiency(self._decode_kernel(op))
                work = latent_decode_work(op, self.hardware.gpu.multiprocessors, efficiency.head_block)
                return Work(work.flops, work.bytes + partial_result_bytes(op, efficiency))
            case SideStream():
                works = [kernel.work for kernel in op.kernels]
                return Work(sum(work.flops for work in works), sum(work.bytes for work in works))
            case _:
                return Work(0.0, 0.0)

    def source(self, op: Op) -> str:
        """Returns which of the box's `sources` the price of an operation rests on.

        Raises:
            MissingEvidence: when the hardware profile has no constants for the kernel.
        """
        match op:
            case Compute() | Experts():
                return self._efficiency(op.kernel).source
            case SideStream():
                return self._efficiency(op.kernels[0].kernel).source
            case LatentDecode():
                return self._efficiency(self._decode_kernel(op)).source
            case Collective():
                curve = find_curve(self.hardware, op, self.launch, self.all_reduce)
                return curve.source if curve else self.hardware.peer_links.source
            case SendRecv():
                network = self.hardware.network if op.across_nodes else None
                return (network or self.hardware.peer_links).source
            case SmallKernels() | HostWork():
                return self.hardware.host.fitted(op.constant, self.stack)[1]

    def rate(self, kernel: str) -> str:
        """Returns the number format that a class of kernels computes in: a key of the GPU's `tensor_rate`."""
        return self._efficiency(kernel).rate

    def _price(self, op: Op) -> Cost:
        match op:
            case Compute():
                return self._roofline(op.kernel, op.work)
            case Experts():
                efficiency = self._efficiency(op.kernel)
                price = self._roofline(op.kernel, expert_work(op, efficiency.weight_reread))
                return price._replace(seconds=price.seconds + self._stream_seconds(activation_bytes(op), efficiency))
            case SideStream():
                return self._side_stream(op)
            case LatentDecode():
                return self._latent_decode(op)
            case SmallKernels():
                return Cost(
                    op.launches * self.hardware.host.small_kernel, "latency", self._basis(self.hardware.host.source)
                )
            case Collective():
                return self._collective(op)
            case SendRecv():
                box = self.hardware
                seconds = MESSAGES_PER_OBJECT * box.host.message + send_recv_seconds(op, box)
                links = box.network if op.across_nodes and box.network else box.peer_links
                return Cost(seconds, "link", self._basis(links.source))
            case HostWork():
                host = self.hardware.host
                return Cost(host_seconds(op, host, self.stack), "host", self._basis(self.source(op)))

    def _roofline(self, kernel: str, work: Work) -> Cost:
        efficiency, basis, foreign = self._evidence(kernel)
        seconds, bound = roofline_seconds(work, self.hardware.gpu, efficiency)
        beyond = efficiency.measured_seconds is not None and seconds > efficiency.measured_seconds[1]
        return Cost(seconds, bound, basis, beyond or foreign)

    def _side_stream(self, op: SideStream) -> Cost:
        """What the side stream adds: both streams share the memory bandwidth, and each hides the other's latencies."""
        prices = [self._roofline(kernel.kernel, kernel.work) for kernel in op.kernels]
        floors = sum(self._efficiency(kernel.kernel).floor for kernel in op.kernels)
        hidden = self._efficiency(op.beside.kernel).floor
        seconds = max(0.0, sum(price.seconds for price in prices) - floors - hidden)
        return prices[0]._replace(seconds=seconds)

    def _decode_kernel(self, op: LatentDecode) -> str:
        """Returns the kernel class: that of the KV's format where the engine's own kernel was measured with it.

        Every engine divides heads and KV in its own way, so another engine's kernel of the format lends nothing.
        """
        return op.kernel if f"{op.kernel}@{self.stack}" in self.hardware.efficiency else "mla_decode"

    def _latent_decode(self, op: LatentDecode) -> Cost:
        kernel = self._decode_kernel(op)
        efficiency = self._efficiency(kernel)
        work = latent_decode_work(op, self.hardware.gpu.multiprocessors, efficiency.head_block)
        price = self._roofline(kernel, work)
        if kernel != op.kernel:
            price = price._replace(basis="datasheet")  # half the bytes is all that is known of it
        parallel = price.seconds + self._stream_seconds(partial_result_bytes(op, efficiency), efficiency)
        sequential = efficiency.floor + efficiency.split_token * split_tokens(
            op, efficiency, self.hardware.gpu.multiprocessors
        )
        exposed = (1.0 - efficiency.split_overlap) * (min(parallel, sequential) - efficiency.floor)
        seconds = max(parallel, sequential) + exposed
        return Cost(seconds, "latency", price.basis) if sequential > parallel else price._replace(seconds=seconds)

    def _stream_seconds(self, size: float, efficiency: Efficiency) -> float:
        return size / (self.hardware.gpu.memory_bandwidth * efficiency.memory)

    def _collective(self, op: Collective) -> Cost:
        if op.ranks == 1:
            return Cost(0.0, "link", "measured")
        nodes = -(-op.ranks // (self.ranks_per_node or op.ranks))
        if nodes > 1 and self.hardware.network is not None:
            node = replace(self, ranks_per_node=None, all_reduce=("nccl",))
            within = node._price(replace(op, ranks=-(-op.ranks // nodes)))
            seconds = across_nodes_seconds(op, nodes, within.seconds, self.hardware.network)
            return Cost(seconds, "link", "datasheet")
        curve = find_curve(self.hardware, op, self.launch, self.all_reduce)
        if curve is None or not self.peer_access:
            seconds = schedule_seconds(op, self.hardware.peer_links, self.peer_access)
            # Staging through the host is never faster than the peer access that a curve was measured with.
            seconds = max(seconds, curve_seconds(curve, op.bytes)) if curve else seconds
            return Cost(seconds, "link", "datasheet")
        smallest, largest = curve.measured_bytes
        beyond = not smallest <= op.bytes <= largest
        return Cost(curve_seconds(curve, op.bytes), "link", self._basis(curve.source), beyond)

    def _efficiency(self, kernel: str) -> Efficiency:
        return self._evidence(kernel)[0]

    def _evidence(self, kernel: str) -> tuple[Efficiency, Basis, bool]:
        """Returns the constants of a kernel class, or of its nearest relative, and what they rest on for this class.

        And whether only the kernels of another stack were measured.
        """
        known = self.hardware.efficiency
        for name, same in relatives(kernel):
            own = known.get(f"{name}@{self.stack}", known.get(name))
            of_others = (entry for key, entry in known.items() if key.startswith(f"{name}@"))
            entry = own or next(of_others, None)
            if entry is not None:
                return entry, self._basis(entry.source) if same else "datasheet", own is None
        raise MissingEvidence(self.hardware.name, f"efficiency.{kernel}", "the constants of this kernel class")

    def _basis(self, source: str) -> Basis:
        return self.hardware.sources[source].basis
