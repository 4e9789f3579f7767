"""Why a prediction is what it is: the binding limit in words, and what the answer hangs on."""

import re
from collections.abc import Iterator
from dataclasses import replace

from pipesim.changes import advice, goal
from pipesim.closed_form import SteadyState
from pipesim.deployment import Deployment
from pipesim.engines import ENGINES, box_of_group
from pipesim.hinges import Hinges
from pipesim.overload import Overload
from pipesim.passes import PricedOp
from pipesim.prediction import Prediction, Predictor
from pipesim.profiles.architectures import DECODERS
from pipesim.whole_runs import RELEASES, learned, releases_apart
from pipesim.workload import Workload

NOTEWORTHY_ALL_REDUCE = 0.02
"""Share of the time from which AllReduce is worth a warning about other hosts."""

NOTEWORTHY_DOUBT = 0.01
"""Share of the priced time from which weak evidence is worth a warning."""

NOTEWORTHY_WAIT = 1.1
"""Mean TTFT over that before from which a change is said to cost it."""
FRONT_END_BINDS = 0.9
"""Share of the time from which a front end that is at work is what an answer hangs on."""

NAMES = {
    "experts": "routed experts",
    "attention": "attention",
    "dense": "dense layers, shared expert and head",
    "all_reduce": "AllReduce",
    "send_recv": "send/recv",
    "host": "host",
    "bubble": "pipeline bubbles",
}


def binding_limit(prediction: Prediction) -> str:
    """Returns in words what takes most of the GPUs' time, and the change of flags that surely gains under the load."""
    return " ".join(filter(None, (_limit(prediction), _advice(prediction))))


def _limit(prediction: Prediction) -> str:
    if (at_work := prediction.front_end_utilisation) > FRONT_END_BINDS:
        return (
            f"Front-end-bound: one of the processes that take requests in and hand tokens out works {at_work:.0%} of "
            "the time; faster GPUs would gain little."
        )
    largest = max(prediction.breakdown, key=lambda name: prediction.breakdown[name])
    share = f"{prediction.breakdown[largest]:.0%}"
    plan, settings = prediction.deployment.plan, prediction.deployment.engine
    if largest == "bubble":
        return f"Pipeline-bound: the GPUs idle in bubbles {share} of the time. {_why_bubbles(prediction)}"
    if largest == "host":
        if not settings.cuda_graph:
            return (
                f"Host-bound: {share} of the time the GPUs wait for kernels launched from Python; AllReduce and memory "
                "reads hide under the launches."
            )
        return f"Host-bound: {share} of the time no micro-batch is in flight while the scheduler works."
    if largest == "all_reduce":
        return f"Link-bound: AllReduce over {plan.tp} GPUs takes {share} of the time."
    if largest == "send_recv":
        return f"Link-bound: sending activations between {plan.pp} stages takes {share} of the time."
    if largest == "experts":
        about = "" if prediction.workload.closed_loop else "about "
        rows = prediction.closed_form.requests_per_micro_batch
        return (
            f"Memory-bound: reading the weights of routed experts takes {share} of the time; a micro-batch of {about}"
            f"{rows} touches its experts anew, whatever the other micro-batches have read."
        )
    return f"{NAMES[largest].capitalize()} takes {share} of the time."


def _why_bubbles(prediction: Prediction) -> str:
    in_flight, slots = prediction.mean("micro_batches_in_flight"), prediction.mean("slots_used")
    pp, users = prediction.deployment.plan.pp, prediction.closed_load.concurrency
    if users < pp:
        who = f"{users} user(s)" if prediction.workload.closed_loop else f"The {users} request(s) inside at a time"
        return f"{who} can fill at most as many of the {pp} stages at a time."
    named = ENGINES[prediction.deployment.engine.name].slots_are_flags and in_flight < 0.8 * pp
    uneven = f", in {slots:.0f} unevenly filled slots" if named else ""
    return f"On average {in_flight:.2f} micro-batches are in flight over {pp} stages{uneven}."


def _advice(prediction: Prediction) -> str:
    change = advice(prediction)
    if change is None:
        return ""
    low, high = change.interval
    value = f"{change.output_tokens_per_s:,.0f} tok/s, {change.speedup:.2f} times as much"
    if goal(prediction.workload) == "e2e_s":
        value = f"an E2E latency of {change.latencies[1]:,.1f} s, {change.speedup:.2f} times as fast"
    ttft, before = change.latencies[0], prediction.latency("ttft_s").mean
    price = f", at a TTFT of {ttft:,.2f} s instead of {before:,.2f} s" if ttft > NOTEWORTHY_WAIT * before else ""
    subject = change.flags or change.label.capitalize()
    return f"{subject} gives {value} ({low:.2f} to {high:.2f}){price}, simulated under this load."


def all_reduce_range(prediction: Prediction) -> tuple[float, float] | None:
    """Returns output tok/s if AllReduce were as slow, or as fast, as on other published boxes of the kind.

    The closed form's ratio, applied to the prediction. None where AllReduce does not matter or no range is known.
    """
    spread = box_of_group(prediction.deployment).all_reduce_range
    if spread is None or prediction.breakdown["all_reduce"] < NOTEWORTHY_ALL_REDUCE:
        return None
    base, now = prediction.closed_form.output_tokens_per_s, prediction.mean("output_tokens_per_s")
    factors = (spread.slowest, spread.fastest)
    slow, fast = (_with_all_reduce(prediction.deployment, prediction.closed_load, factor) for factor in factors)
    return now * slow.output_tokens_per_s / base, now * fast.output_tokens_per_s / base


def datasheet_constants(prediction: Prediction) -> list[str]:
    """Returns the names of the constants of a decode step that rest on a datasheet alone."""
    return sorted({priced.op.constant for priced, _ in _decode_operations(prediction) if priced.basis == "datasheet"})


def extrapolated_constants(prediction: Prediction) -> list[str]:
    """Returns the names of the constants that a decode step uses outside their measured sizes."""
    names = sorted({priced.op.constant for priced, _ in _decode_operations(prediction) if priced.extrapolated})
    return names or ["prefill"]


def _decode_operations(prediction: Prediction) -> Iterator[tuple[PricedOp, str]]:
    """Yields the operations of a decode step, and what the box says of the origin of their prices."""
    predictor = Predictor(prediction.deployment)
    batch = predictor.mid_decode(prediction.closed_load)
    cost = predictor.price.cost(batch)
    for priced in predictor.operations(batch):
        yield priced, cost.hardware.sources[cost.source(priced.op)].text


def _with_all_reduce(deployment: Deployment, workload: Workload, factor: float) -> SteadyState:
    scaled = replace(deployment, hardware=deployment.hardware.with_all_reduce_scaled(factor))
    return Predictor(scaled).steady_state(workload)


def overload_words(found: Overload | None) -> str:
    """Returns in words that an open loop sends more than is carried; nothing where it does not."""
    if found is None:
        return ""
    after, growth = found.ttft_passes_a_minute_after_s, found.queue_growth_per_s
    minute = f"TTFT passes a minute after {after / 60:.1f} min" if after else "TTFT takes long to pass a minute"
    return (
        f"Overloaded: {found.offered_per_s:.2f} requests/s are offered and {found.carried_per_s:.2f} carried. The "
        f"queue grows by {growth:.2f} requests/s, and {minute}. The figures are of this run; a longer one has worse."
    )


def hinge_words(found: Hinges | None) -> list[str]:
    """Returns in words what an answer hangs on."""
    if found is None:
        return []
    lengths = f"{found.equal_lengths:,.0f} tok/s with equal lengths, {found.ragged_lengths:,.0f} with lengths ±50%"
    if found.by_gap:
        first, *_, last = (f"{1e3 * gap:g}" for gap in sorted(found.by_gap))
        rates = found.by_gap.values()
        lengths += f"; {min(rates):,.0f} to {max(rates):,.0f} with users {first} to {last} ms apart"
    splits: dict[str, list[str]] = {}
    for load, split in found.best_split.items():
        splits.setdefault(split, []).append(load)
    if len(splits) == 1:
        return [lengths, f"best split of these GPUs under all of these: {next(iter(splits))}"]
    names = ", ".join(f"{split} with {' and '.join(loads)}" for split, loads in splits.items())
    return [lengths, f"best split of these GPUs: {names}"] if splits else [lengths]


def caveats(deployment: Deployment) -> list[str]:
    """Returns what a reader has to know of any answer for a deployment: what is not modelled, assumed or unchecked."""
    model, engine, box = deployment.model, deployment.engine, deployment.hardware
    found = [f"{model.name}: {note}." if (note := DECODERS[model.architecture].note) else ""]
    if model.moe and model.sources[model.moe.routing_source].basis == "datasheet":
        found.append(
            f"How {model.name} spreads tokens over its experts was not measured; a rank exponent of "
            f"{model.moe.routing_skew:g} is assumed."
        )
    if unchecked := learned().never_checked(deployment):
        found.append(f"No whole run has checked {', '.join(unchecked)}; the interval is wider.")
    if engine.enable_mixed_chunk and deployment.plan.pp > 1:
        found.append("Mixed chunks under PP need SGLang 0.5.23 or later; 0.5.10 refuses to start with both.")
    if releases_apart(deployment):
        drift, error = learned().drift
        found.append(
            f"Kernels were measured with {engine.kernels} {box.measured_with[engine.kernels]}, and {engine.version} is "
            f"asked for. Whole runs of other releases give no sure factor (tok/s {drift:+.0%} ± {error:.0%} for "
            f"{RELEASES} releases), so the interval is wider and the figures are not moved."
        )
    if engine.version_before(first := ENGINES[engine.name].first_read):
        older = ".".join(map(str, first))
        found.append(f"No rules of {engine.name} before {older} were read; those of later releases stand in for them.")
    return list(filter(None, [deployment.memory_note, *found]))


def notes(prediction: Prediction) -> list[str]:
    """Returns what a reader of the numbers has to know."""
    found = []
    hosts = all_reduce_range(prediction)
    if hosts:
        share = prediction.breakdown["all_reduce"]
        found.append(
            f"AllReduce is {share:.0%} of the time and a property of the host: with the AllReduce of other published "
            f"boxes with these GPUs this split gives {hosts[0]:,.0f} to {hosts[1]:,.0f} tok/s. Splits that differ by "
            "less may change places."
        )
    if prediction.basis["datasheet"] >= NOTEWORTHY_DOUBT:
        share, names = prediction.basis["datasheet"], ", ".join(datasheet_constants(prediction))
        texts = (text for priced, text in _decode_operations(prediction) if priced.basis == "datasheet")
        lenders = sorted({re.split(" \\(|:", text)[0] for text in texts if text.startswith("borrowed")})
        found.append(
            f"{share:.0%} of the priced time rests on datasheet figures alone ({'; '.join([names, *lenders])}); the "
            "interval is wider."
        )
    if prediction.extrapolated_fraction >= NOTEWORTHY_DOUBT:
        found.append(
            f"{prediction.extrapolated_fraction:.0%} of the priced time lies outside the sizes that its constants were "
            f"measured at ({', '.join(extrapolated_constants(prediction))}); the interval is wider."
        )
    return [*caveats(prediction.deployment), *found]
