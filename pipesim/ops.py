"""What a batch makes the GPUs and hosts do: operations with their sizes, and no times."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, get_args

Category = Literal["experts", "attention", "dense", "all_reduce", "send_recv", "host"]
"""Where the time of an operation is accounted."""

CollectiveName = Literal["all_reduce", "all_gather"]


class Work(NamedTuple):
    """Arithmetic [FLOP] and memory traffic [B] of one operation on one GPU."""

    flops: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Compute:
    """A kernel, or a few launched together, whose time follows from its work."""

    name: str
    category: Category
    kernel: str
    """Key of the hardware profile's efficiency table."""
    work: Work
    launches: int = 1

    @property
    def constant(self) -> str:
        """The constants that price it."""
        return self.kernel


@dataclass(frozen=True, slots=True)
class SmallKernels:
    """Kernels too small for their work to matter: norms, rotary embedding, copies, top-k."""

    constant: ClassVar[str] = "small_kernel"
    name: str
    category: Category
    launches: int


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of one layer over one batch, on one rank: the busiest where ranks hold different experts."""

    category: ClassVar[Category] = "experts"
    name: str
    kernel: str
    tokens: int
    """Tokens with their own routing."""
    padding_tokens: int
    """Rows a captured graph adds; all of them take the same route."""
    experts: int
    """Experts of the layer, over all ranks."""
    top_k: int
    routing_skew: float
    weights_per_expert: float
    """Parameters of one expert on this rank."""
    bytes_per_weight: float
    bytes_per_token: float
    """Traffic per token of the kernels around the two GEMMs: gather, activation, weighted sum [B]."""
    launches: int
    ranks: int = 1
    """Expert-parallel ranks: each holds experts/ranks of the experts."""

    @property
    def constant(self) -> str:
        """The constants that price it."""
        return self.kernel


@dataclass(frozen=True, slots=True)
class SideStream:
    """Kernels on a second stream beside the routed experts, in a captured graph."""

    category: ClassVar[Category] = "dense"
    name: str
    beside: Experts
    kernels: tuple[Compute, ...]

    @property
    def constant(self) -> str:
        """The constants that price it."""
        return self.kernels[0].kernel

    @property
    def launches(self) -> int:
        """Launches of all its kernels."""
        return sum(kernel.launches for kernel in self.kernels)


@dataclass(frozen=True, slots=True)
class LatentDecode:
    """Decode attention over the MLA latent on one rank: every head reads the same KV."""

    name: ClassVar[str] = "mla_decode"
    category: ClassVar[Category] = "attention"
    requests: int
    kv_tokens: int
    """Mean KV length per request."""
    heads: int
    """Query heads of this rank."""
    latent: int
    """Elements of the compressed KV (the value)."""
    rope: int
    """Elements of the rotary key beside it."""
    bytes_per_element: float
    launches: int = 2
    queries: int = 1
    """New tokens of a request: more than one where speculation verifies drafts."""

    @property
    def rows(self) -> int:
        """Rows that attend to one request's KV: its query heads, each for every new token."""
        return self.heads * self.queries

    @property
    def kernel(self) -> str:
        """The kernel class: every table was measured with 16-bit KV."""
        return "mla_decode" if self.bytes_per_element >= 2.0 else "mla_decode_fp8"

    @property
    def constant(self) -> str:
        """The constants that price it."""
        return self.name


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective over the tensor-parallel ranks of a stage."""

    op: CollectiveName
    category: Category
    ranks: int
    bytes: float
    """Message size as nccl-tests counts it."""
    launches: int = 1

    @property
    def name(self) -> str:
        """The collective's own name."""
        return self.op

    @property
    def constant(self) -> str:
        """The constants that price it."""
        return self.op


@dataclass(frozen=True, slots=True)
class SendRecv:
    """Activations of one micro-batch from a stage to the next, one slice per rank."""

    name: ClassVar[str] = "send_recv"
    category: ClassVar[Category] = "send_recv"
    constant: ClassVar[str] = "send_recv"
    bytes: float
    """Bytes that one rank sends."""
    same_group: bool
    """Whether sender and receiver share a socket or switch."""
    peer_access: bool
    tensors: int
    across_nodes: bool = False
    """Whether they are on different nodes."""
    share: float = 1.0
    """Part of its bandwidth that the transfers running beside it leave, where they meet on a link."""


FrontEndWork = Literal["parse", "encode", "deliver", "pass_on", "round_trip"]
"""Serial work on requests as they come in, and on what a step gives to them; a request's fixed latency; from the last
token that a client gets to its next request."""


@dataclass(frozen=True, slots=True)
class HostWork:
    """CPU work of the serving engine that a GPU may have to wait for."""

    category: ClassVar[Category] = "host"
    name: Literal["launch", "schedule", "process", "idle_turn", "return"] | FrontEndWork
    requests: int = 0
    launches: int = 0
    """Kernel launches from Python; 0 stands for the replay of one captured graph."""
    tokens: int = 0
    """Prompt tokens to encode."""

    @property
    def constant(self) -> str:
        """The constants that price it: launching kernels, the scheduler's turn, or the front end."""
        if self.name in get_args(FrontEndWork):
            return "front_end"
        return "launch" if self.name == "launch" else "scheduler"


StageOp = Compute | SmallKernels | Experts | SideStream | LatentDecode | Collective
"""What runs on the GPUs of a stage."""

Op = StageOp | SendRecv | HostWork
