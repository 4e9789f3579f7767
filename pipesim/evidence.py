"""What a prediction rests on: every constant it uses, with its source and what an error of it would do."""

from collections import defaultdict
from dataclasses import dataclass

from pipesim.cost import CostModel
from pipesim.ops import HostWork, Op, SendRecv
from pipesim.prediction import Prediction, Predictor
from pipesim.profiles.base import Basis
from pipesim.sensitivity import Confidence, Z


@dataclass(frozen=True)
class Evidence:
    """One constant of the box and one source that it rests on."""

    constant: str
    decode_share: float
    """Of the priced time of a decode step; 0 where only prefill or the host's turn uses it."""
    basis: Basis
    log_std: float
    """Log standard deviation; 0 where none is known."""
    effect: float
    """What the 80 % interval of this constant alone does to output tok/s, as a share of it."""
    source: str
    """Name in the hardware profile's table of sources."""
    text: str
    """The source in words."""


def evidence(prediction: Prediction) -> tuple[Evidence, ...]:
    """Returns the evidence of a prediction: the constants of a decode step and of a prefill, most influential first."""
    predictor = Predictor(prediction.deployment)
    decode, prefill = predictor.mid_decode(prediction.workload), predictor.mid_prefill(prediction.workload)[0]
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for batch in (decode, prefill):
        cost = predictor.price.cost(batch)
        for priced in predictor.operations(batch):
            key = priced.op.constant, cost.source(priced.op)
            seconds[key] += priced.picoseconds if batch is decode else 0.0
        for op in _beside_the_kernels(prediction):
            seconds[op.constant, cost.source(op)] += 0.0
    return _ranked(prediction, cost, seconds)


def _ranked(prediction: Prediction, cost: CostModel, seconds: dict[tuple[str, str], float]) -> tuple[Evidence, ...]:
    sensitivities = {item.constant: item for item in Confidence(prediction).sensitivities}
    total = sum(seconds.values())
    found = []
    for (constant, name), share in seconds.items():
        source, known = cost.hardware.sources[name], sensitivities.get(constant)
        std, slope = (known.log_std, known.throughput) if known else (0.0, 0.0)
        found.append(Evidence(constant, share / total, source.basis, std, abs(slope) * std * Z, name, source.text))
    return tuple(sorted(found, key=lambda item: (-item.effect, -item.decode_share, item.constant)))


def _beside_the_kernels(prediction: Prediction) -> list[Op]:
    """Returns what every load needs of the host, and of the links where there are several stages."""
    deployment = prediction.deployment
    ops: list[Op] = [HostWork("launch"), HostWork("schedule")]
    if deployment.plan.pp > 1:
        ops.append(SendRecv(0.0, True, deployment.peer_access, tensors=2, across_nodes=deployment.hardware.nodes > 1))
    return ops
