"""A box: GPUs, links, topology, collectives, kernel efficiencies and host times, each with its source."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipesim.profiles.base import Frozen, Source
from pipesim.units import Bytes, BytesPerSecond, EfficiencyFraction, FlopsPerSecond, Fraction, Seconds

LaunchMode = Literal["eager", "graph"]
Implementation = Literal["nccl", "custom", "pcie-oneshot"]
CollectiveOp = Literal["all_reduce", "all_gather"]


class Gpu(Frozen):
    """One GPU, by its datasheet."""

    name: str
    memory: Bytes = Field(ge=2.0**30)
    """Memory that the driver reports, for example "97887 MiB"."""
    memory_bandwidth: BytesPerSecond
    """Quoted peak; efficiencies are relative to it."""
    memory_clock_bandwidth: BytesPerSecond | None = None
    """What the clock gives that the memory runs at, where it is not the quoted peak."""
    multiprocessors: int = Field(ge=1)
    architecture: str = ""
    """Compute capability, such as "sm_90": engines choose attention kernels by it. Left out where it is not known."""
    tensor_rate: dict[str, FlopsPerSecond]
    """Dense matrix rate by number format ("bf16", "fp8"); efficiencies are relative to it."""
    source: str

    @property
    def most_memory(self) -> float:
        """The largest memory efficiency that the memory's clock allows."""
        return min(1.0, (self.memory_clock_bandwidth or self.memory_bandwidth) / self.memory_bandwidth)


class Efficiency(Frozen):
    """How near a class of kernels comes to the roofline.

    time = floor + max(c, m) + (1 − overlap)·min(c, m), with c = FLOPs / (rate·compute) and
    m = bytes / (memory_bandwidth·memory). `overlap` is the share of the shorter of the two that hides under the longer.
    """

    rate: str = "bf16"
    """The key of gpu.tensor_rate that the kernel computes with."""
    compute: EfficiencyFraction
    memory: EfficiencyFraction
    overlap: Fraction = 1.0
    floor: Seconds
    """Time of the smallest call: launch gap, prologue, one wave."""
    weight_reread: Fraction = 0.0
    """Experts only: share of an expert's weights read again for every row block after its first."""
    split_token: Seconds = 0.0
    """Latent decode attention only: time per KV token of one sequential KV split."""
    head_block: int = Field(default=16, ge=1)
    """Latent decode attention only: query heads of one thread block; fewer are padded, and each block reads the KV."""
    kv_splits: int = Field(default=8, ge=1)
    """Latent decode attention only: splits of a request's KV until a split is `longest_split` tokens long."""
    longest_split: int = Field(default=1024, ge=1)
    """Tokens of a split beyond which the kernel makes more splits, not longer ones."""
    most_splits: int = Field(default=0, ge=0)
    """Splits beyond which they grow again; 0: never."""
    waves: bool = False
    """Whether a multiprocessor walks one split at a time, so that more splits than multiprocessors take more waves."""
    split_overlap: Fraction = 1.0
    """Share of the shorter that hides under the longer, of a split's sequential time and the roofline's."""
    measured_seconds: tuple[Seconds, Seconds] | None = None
    """Shortest and longest call it was fitted to; a longer one lies beyond the evidence."""
    fit_error: Fraction
    """Mean absolute relative error of the fit over the cases it was made from."""
    log_std: dict[str, Annotated[float, Field(ge=0.0)]] = Field(default_factory=dict)
    """Standard error of the logarithm of each fitted constant, by its name; one at a bound has none."""
    source: str


class Line(Frozen):
    """latency + bytes / bandwidth."""

    latency: Seconds
    bandwidth: BytesPerSecond


class CollectiveCurve(Frozen):
    """Time of one collective over a group of ranks: the larger or the smaller of straight lines in its bytes."""

    op: CollectiveOp
    ranks: int = Field(ge=2)
    launch: LaunchMode
    """Launched from Python ("eager") or inside a CUDA graph ("graph")."""
    implementation: Implementation
    """The library: NCCL, the engines' own one-shot kernel, or a one-shot kernel for PCIe hosts."""
    up_to: Bytes | None = None
    """Largest message that an engine gives to this implementation; None for any."""
    shape: Literal["max", "min"]
    lines: tuple[Line, ...] = Field(min_length=1, max_length=3)
    measured_bytes: tuple[Bytes, Bytes]
    """Smallest and largest message that the curve was fitted to."""
    own: bool = False
    """Measured on this very box, so that the range of other hosts says nothing of it."""
    fit_error: Fraction
    log_std: dict[str, Annotated[float, Field(ge=0.0)]] = Field(default_factory=dict)
    """Standard error of the logarithm of each fitted constant: "latency_0", "bandwidth_0", "latency_1" …"""
    source: str

    def scaled(self, latency: float = 1.0, bandwidth: float = 1.0) -> Self:
        """Returns the curve with factors on the latencies and on the bandwidths of its lines."""
        lines = ((line.latency * latency, line.bandwidth * bandwidth) for line in self.lines)
        scaled = tuple(Line.model_construct(latency=start, bandwidth=rate) for start, rate in lines)
        return self.model_copy(update={"lines": scaled})


class AllReduceRange(Frozen):
    """How far the AllReduce of published boxes of the same kind lies from this box's curves: a property of the host."""

    fastest: float = Field(ge=1e-3, le=1)
    slowest: float = Field(ge=1, le=1e3)
    """Factors on the time of this profile's curves."""
    gpu: str = ""
    """What the names of the published boxes' GPUs begin with; empty: this profile's alone."""
    source: str


class PeerLinks(Frozen):
    """Point-to-point transfers between two GPUs of the box."""

    launch: Seconds
    """Stream-launched send/recv of a few bytes with peer access."""
    same_group_bandwidth: BytesPerSecond
    cross_group_bandwidth: BytesPerSecond
    staged_launch: Seconds
    """The same without peer access, staged through host memory."""
    staged_bandwidth: BytesPerSecond
    peer_access: bool = True
    """Whether the driver as installed gives peer access; `--p2p` and `--no-p2p` go before it."""
    source: str


class Switch(Frozen):
    """A PCIe switch: the GPUs below it, those below its own switches among them, and its one link upwards."""

    gpus: tuple[int, ...] = Field(min_length=1)
    uplink: BytesPerSecond
    """What all its GPUs together get upwards, in one direction."""


class Topology(Frozen):
    """Which GPUs share a socket or a switch: a tree of sockets, switches that contain each other, and GPUs."""

    groups: tuple[tuple[int, ...], ...]
    """GPUs that reach each other at `same_group_bandwidth`."""
    kind: Literal["socket", "switch", "nvlink"]
    """What the GPUs of a group share."""
    sockets: tuple[tuple[int, ...], ...] = ()
    """GPUs by CPU socket, or NUMA node; empty where not known."""
    switches: tuple[Switch, ...] = ()
    """In any order; a switch whose GPUs are all below another one hangs on it."""
    source: str

    @model_validator(mode="after")
    def _check_tree(self) -> Self:
        sets = [frozenset(switch.gpus) for switch in self.switches]
        for index, one in enumerate(sets):
            for other in sets[:index]:
                if one & other and not (one < other or other < one):
                    given = f"topology.switches share the GPUs {sorted(one & other)}"
                    raise ValueError(f"{given}; switches that are apart, or one below the other is wanted")
        return self

    def switches_between(self, gpu: int, other: int | None) -> tuple[int, ...]:
        """Returns the switches, by index, whose uplink lies between a GPU and another (None: its socket)."""
        return tuple(i for i, s in enumerate(self.switches) if gpu in s.gpus and other not in s.gpus)


class Network(Frozen):
    """What joins the nodes of a box of several servers; every GPU has a network link of its own."""

    nodes: int = Field(ge=1, le=4096)
    """Servers, with equally many GPUs: `gpus` / `nodes`, in their order."""
    bandwidth: BytesPerSecond
    """Of one GPU to one of another node, in one direction."""
    latency: Seconds
    """Of one message between two nodes, beside what a transfer within a node takes."""
    source: str


class FrontEnd(Frozen):
    """What stands between clients and an engine's scheduler: one process for HTTP and tokenizer, one that detokenizes.

    An event loop goes round: of requests that come together all are parsed before the first is encoded, so that they
    reach the scheduler one encoding apart.
    """

    per_request: Seconds
    """Serial CPU time to receive and parse a request."""
    per_dispatch: Seconds
    """Serial CPU time to hand an encoded request to the scheduler."""
    per_prompt_token: Seconds
    """Serial CPU time to encode one token of a prompt."""
    per_output: Seconds
    """Serial CPU time to decode and send on what one step gave to one request."""
    latency: Seconds
    """Time of one request beside the serial one, until the scheduler has it."""
    round_trip: Seconds
    """From the last token of an answer to the same client's next request."""
    log_std: float = Field(default=0.6, ge=0)
    """Log standard deviation of all of these together."""
    source: str


class EngineTimes(Frozen):
    """What whole runs of one engine on this host say of its CPU times; left out is what they do not tell."""

    launch: float | None = Field(default=None, gt=0)
    """Factor on `eager_launch` and `graph_launch`."""
    scheduler: float | None = Field(default=None, gt=0)
    """Factor on forming a batch, handling its result, an empty turn and a message."""
    source: str


class HostTimes(Frozen):
    """CPU times of the serving engine on this host."""

    eager_launch: Seconds
    """CPU time of one kernel launched from Python: the operator, its checks and the launch."""
    graph_launch: Seconds
    """CPU time of replaying one captured stage."""
    small_kernel: Seconds
    """GPU time of one small kernel (norm, rope, copy, top-k …) inside a graph, its scheduling gap included."""
    schedule: Seconds
    """Forming one batch."""
    schedule_per_request: Seconds
    process: Seconds
    """Handling the result of one batch."""
    process_per_request: Seconds
    idle_turn: Seconds
    """One turn of the engine's loop over an empty micro-batch slot."""
    message: Seconds
    """One CPU message between two ranks (gloo)."""
    front_end: dict[str, FrontEnd] = Field(default_factory=dict)
    """By engine. A profile that states none has those of `profiles/front_end.toml`."""
    engines: dict[str, EngineTimes] = Field(default_factory=dict)
    """By engine, where its own runs were fitted (`pipesim calibrate --runs`)."""
    source: str

    def fitted(self, constant: str, stack: str) -> tuple[float, str]:
        """Returns the factor on a group of an engine's CPU times, and the source that they rest on."""
        own = self.engines.get(stack)
        factor = getattr(own, constant, None)
        return (factor, own.source) if own and factor else (1.0, self.source)


class Uncertainty(Frozen):
    """Relative standard deviations of what has no fit error of its own."""

    launch: float = Field(default=0.3, ge=0)
    """Time per kernel launched from Python."""
    scheduler: float = Field(default=0.5, ge=0)
    """The engine's turn: schedule, process, messages."""
    small_kernel: float = Field(default=0.3, ge=0)
    send_recv: float = Field(default=0.3, ge=0)
    end_to_end: float | None = Field(default=None, ge=0)
    """What remains between a whole run and its prediction: the root mean square log error over calibration runs of this
    box. Left out, what runs of other boxes show (`pipesim.whole_runs`)."""
    end_to_end_of: tuple[str, ...] = ()
    """What these runs were of: model family and engine ("Llama in bf16 under vllm"); empty: the box's every use."""
    source: str = ""


class MemoryReserve(Frozen):
    """Device memory that is neither weights nor KV cache."""

    context: Bytes
    """CUDA context, libraries and communicators of one rank."""
    source: str


class HardwareProfile(Frozen):
    """A box of equal GPUs and what its work costs."""

    schema_version: Literal[1]
    name: str
    description: str
    gpus: int = Field(ge=1, le=4096)
    gpu: Gpu
    peer_links: PeerLinks
    topology: Topology
    network: Network | None = None
    """Between nodes; what a group of ranks on several of them does is priced from it."""
    memory_reserve: MemoryReserve
    host: HostTimes
    efficiency: dict[str, Efficiency]
    """By kernel class."""
    collectives: tuple[CollectiveCurve, ...] = ()
    all_reduce_range: AllReduceRange | None = None
    uncertainty: Uncertainty = Uncertainty()
    measured_with: dict[str, str] = Field(default_factory=dict)
    """By engine: the version whose kernels were measured."""
    sources: dict[str, Source]

    @model_validator(mode="after")
    def _check_references(self) -> Self:
        names = ("gpu", "peer_links", "topology", "memory_reserve", "host", "network", "all_reduce_range")
        parts = {name: part for name in names if (part := getattr(self, name)) is not None}
        parts |= {f"host.front_end.{name}": entry for name, entry in self.host.front_end.items()}
        parts |= {f"host.engines.{name}": times for name, times in self.host.engines.items()}
        parts |= {f"efficiency.{name}": entry for name, entry in self.efficiency.items()}
        parts |= {f"collectives[{i}]": entry for i, entry in enumerate(self.collectives)}
        if self.uncertainty.source:
            parts["uncertainty"] = self.uncertainty
        for name, part in parts.items():
            if part.source not in self.sources:
                raise ValueError(f'{name}.source names "{part.source}"; one of {sorted(self.sources)} is wanted')
        for name, entry in self.efficiency.items():
            if entry.rate not in self.gpu.tensor_rate:
                raise ValueError(
                    f'efficiency.{name}.rate is "{entry.rate}"; one of {sorted(self.gpu.tensor_rate)} is wanted'
                )
        self._check_topology()
        return self

    def _check_topology(self) -> None:
        whole, topology = list(range(self.gpus)), self.topology
        for key, parts in (("groups", topology.groups), ("sockets", topology.sockets or (tuple(whole),))):
            members = sorted(gpu for part in parts for gpu in part)
            if members != whole:
                raise ValueError(
                    f"topology.{key} holds the GPUs {members}; each of 0 to {self.gpus - 1} once is wanted"
                )
        below = {gpu for switch in topology.switches for gpu in switch.gpus}
        if below - set(whole):
            raise ValueError(f"topology.switches holds the GPUs {sorted(below)}; GPUs from 0 to {whole[-1]} is wanted")
        if self.gpus % self.nodes:
            raise ValueError(f"network.nodes is {self.nodes}; a number that divides the {self.gpus} GPUs is wanted")
        for group in (*topology.groups, *topology.sockets, *(switch.gpus for switch in topology.switches)):
            if len({self.node_of(gpu) for gpu in group}) > 1:
                raise ValueError(f"topology has {list(group)} on several nodes; groups within a node is wanted")

    def __repr__(self) -> str:
        return f"HardwareProfile({self.name!r})"

    def with_all_reduce_scaled(self, factor: float) -> Self:
        """Returns the same box with AllReduce taking `factor` times as long at every size."""
        scaled = tuple(c.scaled(factor, 1 / factor) if c.op == "all_reduce" else c for c in self.collectives)
        return self.model_copy(update={"collectives": scaled})

    def with_links_scaled(self, factor: float) -> Self:
        """Returns the same box with every link and every collective `factor` times as fast per byte; latencies stay."""
        links = self.peer_links
        names = ("same_group_bandwidth", "cross_group_bandwidth", "staged_bandwidth")
        faster = links.model_copy(update={name: getattr(links, name) * factor for name in names})
        curves = tuple(curve.scaled(bandwidth=factor) for curve in self.collectives)
        uplinks = tuple(s.model_copy(update={"uplink": s.uplink * factor}) for s in self.topology.switches)
        topology = self.topology.model_copy(update={"switches": uplinks})
        return self.model_copy(update={"peer_links": faster, "collectives": curves, "topology": topology})

    def with_link(self, bandwidth: str | None = None, latency: str | None = None) -> Self:
        """Returns the same box with other links between its GPUs: a what-if, labelled so in its name and sources.

        Every link, uplink and collective is scaled by the ratio of `bandwidth`, such as "128 GB/s", to what two GPUs
        of a group get now. The start of every transfer and collective is scaled by the ratio of `latency`, such as
        "5 us", to that of a send/recv now. Nothing of it is measured, so that the answer counts it as datasheet.

        Raises:
            ValueError: for a quantity of another unit, or zero.
        """
        from pipesim.profiles.other_links import with_link  # noqa: PLC0415 - it knows this class

        return with_link(self, bandwidth, latency)

    def with_gpus(self, gpus: int, nodes: int = 1) -> Self:
        """Returns a box of the same GPUs: `gpus` in each of so many nodes; see `pipesim.profiles.resize`.

        Raises:
            ProfileError: when no server holds so many.
        """
        from pipesim.profiles.names import canonical  # noqa: PLC0415
        from pipesim.profiles.resize import resized  # noqa: PLC0415 - it knows this class

        return resized(self, gpus, nodes, canonical(self.name, gpus, nodes))

    @property
    def nodes(self) -> int:
        """Servers that the GPUs are spread over."""
        return self.network.nodes if self.network else 1

    def node_of(self, gpu: int) -> int:
        """Returns the node of a GPU."""
        return gpu * self.nodes // self.gpus

    def nvlink_joins(self, ranks: int) -> bool:
        """Returns whether any `ranks` neighbours reach each other over NVLink."""
        return self.topology.kind == "nvlink" and all(len(group) >= ranks for group in self.topology.groups)

    def same_group(self, first: int, second: int) -> bool:
        """Returns whether two GPUs share a socket or switch."""
        return any(first in group and second in group for group in self.topology.groups)
