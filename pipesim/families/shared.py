"""What every family is made of: tensors, sections, shares of a batch, matrix products and collectives."""

from typing import Literal, NamedTuple

from pipesim.deployment import ParallelPlan
from pipesim.ops import Category, Collective, Compute, SmallKernels, StageOp, Work
from pipesim.profiles.model import STORAGE_BYTES, LayerKind, ModelProfile
from pipesim.workload import Batch, DecodeStep, MixedStep, PrefillChunk

Section = Literal["embedding", "receive", "head", "draft"] | LayerKind
"""A part of the model that a stage runs as a whole."""


class Tensor(NamedTuple):
    """Parameters of one kind in one section of the model."""

    precision: str
    """Field of the model profile's `precision`."""
    parameters: int
    sharded: bool
    """Divided over the tensor-parallel ranks, or held whole by each."""
    by_request: bool = False
    """Held whole by each, too, where attention is split by request."""
    most_shards: int = 0
    """Ranks beyond which parts are held by several ranks each; 0: none (KV heads)."""

    def on_rank(self, ranks: int) -> float:
        """Returns the parameters that each of some ranks holds."""
        if not self.sharded:
            return float(self.parameters)
        return self.parameters / (min(ranks, self.most_shards) if self.most_shards else ranks)


def batch_on_rank(batch: Batch, ranks: int) -> Batch:
    """Returns the part of a batch that the fullest of some ranks attends for when its requests are dealt evenly."""
    if ranks == 1:
        return batch
    if isinstance(batch, MixedStep) and batch.attends in {"decode", "prefill"}:
        apart = batch.attends == "decode"
        return (
            _decode_share(batch.decode, ranks - batch.prefill.holders) if apart else batch_on_rank(batch.prefill, ranks)
        )
    if isinstance(batch, MixedStep):
        return batch._replace(decode=_decode_share(batch.decode, ranks), prefill=_prefill_share(batch.prefill, ranks))
    return _decode_share(batch, ranks) if isinstance(batch, DecodeStep) else _prefill_share(batch, ranks)


def _decode_share(batch: DecodeStep, ranks: int) -> DecodeStep:
    return batch._replace(requests=-(-batch.requests // ranks), rows=-(-batch.rows // ranks))


def _prefill_share(batch: PrefillChunk, ranks: int) -> PrefillChunk:
    ranks = batch.holders or ranks
    return batch._replace(
        tokens=-(-batch.tokens // ranks),
        requests=-(-batch.requests // ranks),
        attended=-(-batch.attended // ranks),
        finished=-(-batch.finished // ranks),
        context=-(-batch.context // ranks),
    )


def padded_over_ranks(batch: Batch, ranks: int) -> Batch:
    """Returns a batch padded so that some ranks have equally many rows of it: as many as the fullest."""
    if isinstance(batch, DecodeStep):
        return batch._replace(rows=-(-batch.rows // ranks) * ranks)
    return batch._replace(tokens=-(-batch.tokens // ranks) * ranks) if isinstance(batch, PrefillChunk) else batch


def drafted(batch: Batch) -> int:
    """Returns the rows whose next token a draft guesses: one for each request that has a token."""
    return sum(part.rows if isinstance(part, DecodeStep) else part.finished for part in parts_of(batch))


def parts_of(batch: Batch) -> tuple[DecodeStep | PrefillChunk, ...]:
    """Returns the decode and the prefill of a batch: attention runs them one after the other."""
    return (batch.decode, batch.prefill) if isinstance(batch, MixedStep) else (batch,)


def gemm(name: str, category: Category, storage: str, m: int, n: float, k: float) -> Compute:
    """Returns the product of an m × k activation with k × n weights; activations are read and written in 16 bits."""
    flops = 2.0 * m * n * k
    return Compute(name, category, f"gemm_{storage}", Work(flops, STORAGE_BYTES[storage] * n * k + 2.0 * m * (n + k)))


def all_reduce(model: ModelProfile, tokens: int, tp: int) -> list[StageOp]:
    """Returns the sum of the ranks' hidden states, where there are several."""
    size = STORAGE_BYTES[model.precision.activations] * tokens * model.hidden_size
    return [Collective("all_reduce", "all_reduce", tp, size)] if tp > 1 else []


def exchange(model: ModelProfile, tokens: int, plan: ParallelPlan) -> list[StageOp]:
    """Returns all rows to every rank, or all ranks' sums back to the row's own: the same bytes either way."""
    size = STORAGE_BYTES[model.precision.activations] * tokens * model.hidden_size
    return [Collective("all_gather", "all_reduce", plan.tp, size)]


def gated_mlp(name: str, model: ModelProfile, storage: str, tokens: int, columns: float) -> list[StageOp]:
    """Returns gate and up projection in one product, the activation, and the down projection."""
    return [
        gemm(f"{name}_gate_up", "dense", storage, tokens, 2 * columns, model.hidden_size),
        SmallKernels(f"{name}_act", "dense", 1),
        gemm(f"{name}_down", "dense", storage, tokens, model.hidden_size, columns),
    ]


def context_parallel(
    model: ModelProfile, attend: list[StageOp], dcp: int, head_rows: int, elements: tuple[int, int]
) -> list[StageOp]:
    """Returns decode attention over 1/dcp of the KV, for the heads of all ranks that share it, and what goes around it.

    The queries of all heads are gathered before; the outputs are weighted by their log-sum-exps, gathered in FP32, and
    reduce-scattered behind it (vLLM v1/attention/ops/common.py `cp_lse_ag_out_rs`). `elements` are those of one head's
    query and of its output.
    """
    if dcp == 1:
        return attend
    query, output = (STORAGE_BYTES[model.precision.activations] * head_rows * size for size in elements)
    return [
        Collective("all_gather", "all_reduce", dcp, query),
        *attend,
        Collective("all_gather", "all_reduce", dcp, 4.0 * head_rows * dcp),
        Collective("all_gather", "all_reduce", dcp, output),
    ]
