"""The question and its answer: a deployment and a load in, a `Prediction` out."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from pipesim.closed_form import SteadyState, steady_state
from pipesim.cost.memory import RankMemory, kv_bytes_per_token, rank_memory
from pipesim.deployment import Deployment
from pipesim.engines import ENGINES, Request, all_reduce_preference
from pipesim.errors import InfeasibleDeployment
from pipesim.fitting import GIB, deploy, fitting_plans
from pipesim.metrics import Latency, Metrics, summarise
from pipesim.passes import NO_FRONT_END, FrontEndPrice, PassPricer, PricedOp
from pipesim.replicas import Share, deal, looks_into_servers, per_replica, pooled
from pipesim.simulation import Detail, simulate_together
from pipesim.timeline import Timeline
from pipesim.units import PICOSECONDS_PER_SECOND, to_seconds
from pipesim.workload import LIMITS, Batch, PrefillChunk, Workload

__all__ = ["GIB", "Prediction", "Predictor", "deploy", "fitting_plans", "pricer_of"]

LITTLE = 0.15
"""Share of the time of a wave up to which what the closed form leaves out is taken to matter little."""
RAMP = 2.0
"""Mean gap of the first requests of a steady load over the gap between answers by the closed form, which knows no
waiting: spread wider than they end, no requests begin as a wave, whose even slots would take ten waves to wear off."""


@dataclass(frozen=True)
class Prediction:
    """What pipesim says of one deployment under one load: one `Metrics` per seed, and what the box has to hold."""

    deployment: Deployment
    workload: Workload
    detail: Detail
    kv_capacity_tokens: int
    memory: tuple[RankMemory, ...]
    """Per stage."""
    runs: tuple[Metrics, ...]
    """Per seed."""
    closed_load: Workload
    """The closed loop that stands for the load in closed form: the load itself, or of as many users as were in the
    server of an open loop at a time."""
    closed_form: SteadyState
    """Of that closed loop."""
    closed_form_holds: bool
    """Whether the closed form's assumptions hold for the load; see `Predictor.closed_form_holds`."""
    first_seed: int = 0
    """Of the first run."""
    front_end: FrontEndPrice = NO_FRONT_END
    """Of every server."""

    @cached_property
    def beside(self) -> dict[object, Any]:
        """What else was simulated of the question, by what differs; see `variations`."""
        return {}

    def mean(self, name: str) -> float:
        """Returns the mean over seeds of one number of `Metrics`."""
        return fmean(getattr(run, name) for run in self.runs)

    def latency(self, name: str) -> Latency:
        """Returns the mean over seeds of one `Latency` of `Metrics`, figure by figure."""
        return Latency(*(fmean(values) for values in zip(*(getattr(run, name) for run in self.runs), strict=True)))

    def over_seeds(self, name: str) -> list[float]:
        """Returns one number of `Metrics`, or the mean of one of its latencies, for each seed."""
        values = [getattr(run, name) for run in self.runs]
        return [value.mean if isinstance(value, Latency) else value for value in values]

    @cached_property
    def front_end_utilisation(self) -> float:
        """Share of the time that the busier of the two processes of a server's front end works."""
        load, plan = self.workload, self.deployment.plan
        taken_in = self.mean("request_throughput_per_s") * self.front_end.accept(load.input_len)
        steps = self.mean("output_tokens_per_s") / self.deployment.engine.tokens_per_step
        return to_seconds(max(taken_in, steps * self.front_end.per_output) / plan.replicas)

    @cached_property
    def extrapolated_fraction(self) -> float:
        """Share of priced seconds whose operations lie outside the range of their evidence."""
        total = sum(seconds for run in self.runs for seconds in run.basis_s.values())
        return sum(run.extrapolated_s for run in self.runs) / total

    @cached_property
    def breakdown(self) -> dict[str, float]:
        """Shares of GPU-seconds over the window; they sum to 1."""
        names = ("experts", "attention", "dense", "all_reduce", "send_recv")
        loads = [load for run in self.runs for load in run.stages]
        total = sum(load.window for load in loads)
        shares = {name: sum(load.by_category.get(name, 0.0) for load in loads) / total for name in names}
        shares["host"] = sum(load.host for load in loads) / total
        shares["bubble"] = sum(load.bubble for load in loads) / total
        return shares

    @cached_property
    def bounds(self) -> dict[tuple[str, str], float]:
        """Shares of GPU-seconds over the window by category and what binds; host and bubble as in `breakdown`."""
        loads = [load for run in self.runs for load in run.stages]
        total = sum(load.window for load in loads)
        kinds = sorted({kind for load in loads for kind in load.by_bound})
        shares = {kind: sum(load.by_bound.get(kind, 0.0) for load in loads) / total for kind in kinds}
        return shares | {(name, name): self.breakdown[name] for name in ("host", "bubble")}

    @cached_property
    def basis(self) -> dict[str, float]:
        """Shares of priced seconds by what they rest on; they sum to 1."""
        total = sum(seconds for run in self.runs for seconds in run.basis_s.values())
        return {
            name: sum(run.basis_s.get(name, 0.0) for run in self.runs) / total
            for name in ("measured", "fitted", "datasheet")
        }

    def free_bytes(self, stage: int) -> float:
        """Returns the memory [B] that weights and KV cache leave on each GPU of one stage."""
        kv_cache = self.kv_capacity_tokens * kv_bytes_per_token(self.deployment, stage)
        return self.deployment.hardware.gpu.memory - self.memory[stage].total - kv_cache

    def stage_share(self, stage: int) -> tuple[float, float]:
        """Returns busy and bubble fraction of one stage's GPUs, mean over seeds."""
        loads = [run.stages[stage] for run in self.runs]
        return fmean(load.busy / load.window for load in loads), fmean(load.bubble / load.window for load in loads)


def pricer_of(deployment: Deployment, scale: Mapping[str, float] | None = None) -> PassPricer:
    """Returns the prices of batches on a deployment, as its engine runs them; see `Predictor` for `scale`."""
    waits = ENGINES[deployment.engine.name].last_worker_waits(deployment)
    return PassPricer(deployment, all_reduce_preference(deployment), scale, waits)


class Predictor:
    """One deployment with its prices, ready to be asked about loads.

    `scale` puts factors on prices, by constants' name or category (see `CostModel`): "what if AllReduce were free?"
    `price` is the pricer of a deployment that differs in its scheduler's flags alone, whose prices are the same.
    """

    def __init__(
        self, deployment: Deployment, scale: Mapping[str, float] | None = None, price: PassPricer | None = None
    ) -> None:
        self.deployment = deployment
        self.engine = ENGINES[deployment.engine.name]
        self.kv_capacity_tokens = self.engine.kv_capacity_tokens(deployment)
        self.price = price or pricer_of(deployment, scale)

    def simulate(self, workload: Workload, seed: int, detail: Detail = "pass") -> Timeline:
        """Returns the timeline of one run of a load.

        Raises:
            InfeasibleDeployment: when the KV cache does not hold a single request of the load.
        """
        self.check_kv(workload)
        if workload.steady and workload.spacing_s is None:
            gap = RAMP * workload.output_len / self.steady_state(workload).output_tokens_per_s
            workload = replace(workload, spacing_s=min(3600.0, gap))
        specs, plan = workload.draw(seed), self.deployment.plan
        requests = [
            Request(
                index,
                spec.input_len,
                spec.output_len,
                spec.context_len,
                spec.submit_ps,
                max_new_tokens=spec.max_new_tokens,
                sent_len=spec.sent_len,
                ignore_eos=workload.ignore_eos,
            )
            for index, spec in enumerate(specs)
        ]
        shares = deal(plan, workload, len(specs))
        if looks_into_servers(plan, workload):
            everything = Share(slice(None), None, workload.max_concurrency)
            return pooled(self._simulate(requests, everything, detail, plan.replicas))
        return pooled([self._simulate(requests, share, detail)[0] for share in shares])

    def _simulate(self, requests: list[Request], share: Share, detail: Detail, servers: int = 1) -> list[Timeline]:
        """Returns the timelines of some servers under a share of the load."""
        return simulate_together(
            [self.engine.policy(self.deployment, self.kv_capacity_tokens) for _ in range(servers)],
            self.price,
            requests[share.requests],
            stages=self.deployment.plan.pp,
            users=share.users,
            idle_turn=self.price.idle_turn,
            detail=detail,
            operations=self.price.operations,
            max_concurrency=share.max_concurrency,
            front_end=self.price.front_end,
        )

    def decode_slots(self, workload: Workload) -> tuple[int, int]:
        """Returns micro-batches in flight and requests in each, of the replica with the most users."""
        users, requests = per_replica(self.deployment.plan, workload)
        own = replace(workload, concurrency=users, num_prompts=requests, steady=False)
        return self.engine.decode_slots(self.deployment, own, self.kv_capacity_tokens)

    def mid_decode(self, workload: Workload) -> Batch:
        """Returns the decode step of one slot at mid-length, if the load spreads evenly."""
        _, requests = self.decode_slots(workload)
        held = requests * (workload.context_len + workload.input_len + workload.output_len // 2)
        return self.engine.decode_batch(self.deployment, requests, held)

    def mid_prefill(self, workload: Workload) -> tuple[PrefillChunk, int]:
        """Returns one prefill launch of one slot, and how many of them a generation of its requests takes."""
        _, requests = self.decode_slots(workload)
        prompt = requests * (workload.input_len - workload.cached_len)
        launches = max(1, -(-prompt // self.engine.prefill_budget(self.deployment)))
        tokens, finished = -(-prompt // launches), -(-requests // launches)
        before = workload.context_len + workload.cached_len
        attended = tokens * before + tokens * (workload.input_len - workload.cached_len + 1) // 2
        earlier = max(0, workload.input_len - workload.cached_len - tokens) // 2
        context = finished * (before + earlier)
        absorbed = self.engine.absorbs(self.deployment, tokens, context)
        return PrefillChunk(tokens, finished, attended, finished, context, absorbed), launches

    def operations(self, batch: Batch) -> Iterator[PricedOp]:
        """Yields the priced operations of one micro-batch on its way through all stages."""
        for stage in range(self.deployment.plan.pp):
            yield from self.price.operations(batch, stage)

    def constants(self, workload: Workload) -> set[str]:
        """Returns the names of the constants that price a load, the host's and the links' among them."""
        batches = (self.mid_decode(workload), self.mid_prefill(workload)[0])
        used = {priced.op.constant for batch in batches for priced in self.operations(batch)}
        return used | {"launch", "scheduler", "send_recv", "front_end"}

    def steady_state(self, workload: Workload) -> SteadyState:
        """Returns the closed form of a load."""
        policy = self.engine.policy(self.deployment, self.kv_capacity_tokens)
        steady = steady_state(
            self.price,
            workload,
            policy.loop,
            self.decode_slots(workload),
            self.mid_decode(workload),
            self.mid_prefill(workload),
            self.price.idle_turn,
            tokens_per_step=self.deployment.engine.tokens_per_step,
            front_end=self.price.front_end,
        )
        replicas = self.deployment.plan.replicas
        rate = steady.output_tokens_per_s * (min(replicas, workload.concurrency) if workload.closed_loop else replicas)
        return replace(steady, output_tokens_per_s=rate)

    def closed_form_holds(self, workload: Workload) -> bool:
        """Returns whether a load is what the closed form assumes.

        Users who wait for answers, requests of one length in whole waves, all users in the server at once, and in every
        slot equally many requests, because there is one slot or because the cap leaves no other way. Several slots stay
        in step only where prompts, which hold all of them up, take little of the time.
        """
        micro_batches, requests = self.decode_slots(workload)
        users, prompts = per_replica(self.deployment.plan, workload)
        even = micro_batches == 1 or self.engine.most_in_slot(self.deployment, self.kv_capacity_tokens) == requests
        whole = workload.concurrency % self.deployment.plan.replicas == 0 and prompts % users == 0
        alike = workload.closed_loop and not (workload.random_range_ratio or workload.log_spread or workload.steady)
        if not (alike and whole and even and users == micro_batches * requests):
            return False
        steady = self.steady_state(workload)
        prefill = self.mid_prefill(workload)[1] * steady.prefill_time_s
        generation = workload.concurrency * workload.output_len / steady.output_tokens_per_s
        gap = (workload.spacing_s or 0.0) + self.price.front_end.accept(workload.input_len) / PICOSECONDS_PER_SECOND
        in_step = self.deployment.plan.pp == 1 or (
            self.mid_decode(workload).captured and prefill <= LITTLE * generation
        )
        return in_step and users * gap <= LITTLE * generation

    def predict(
        self,
        workload: Workload,
        seeds: int,
        detail: Detail = "pass",
        first_seed: int = 0,
        observe: Callable[[int, Timeline], None] = lambda seed, timeline: None,
    ) -> Prediction:
        """Returns the prediction of a load over some seeds, of a trace from one run; `observe` sees every run."""

        def run(seed: int) -> Metrics:
            timeline = self.simulate(workload, seed, detail)
            observe(seed, timeline)
            return summarise(timeline, workload.opening, workload.steady)

        runs = tuple(run(first_seed + seed) for seed in range(seeds if workload.random else 1))
        memory = tuple(rank_memory(self.deployment, stage) for stage in range(self.deployment.plan.pp))
        load = workload if workload.closed_loop else as_closed_loop(workload, _users_inside(runs))
        closed, holds = self.steady_state(load), self.closed_form_holds(workload)
        capacity = self.kv_capacity_tokens
        return Prediction(
            self.deployment,
            workload,
            detail,
            capacity,
            memory,
            runs,
            load,
            closed,
            holds,
            first_seed,
            self.price.front_end,
        )

    def check_kv(self, workload: Workload) -> None:
        """Raises InfeasibleDeployment when the engine refuses the longest request, or its KV cache cannot hold it."""
        longest, deployment = workload.tokens_per_request, self.deployment
        room = self.kv_capacity_tokens // deployment.plan.attention_dp
        stated = "--context-length allows" if deployment.engine.context_length else f"{deployment.model.name} allows"
        reasons = [
            f"One request of this load takes up to {longest:,} tokens{of}; {who} {most:,}{what}."
            for of, who, most, what in (
                ("", stated, deployment.positions, ": the engine refuses it"),
                (" of KV cache", f"{deployment.plan} on {deployment.hardware.name} has room for", room, ""),
            )
            if longest > most
        ]
        if reasons:
            raise InfeasibleDeployment(reasons)


def as_closed_loop(workload: Workload, users: int) -> Workload:
    """Returns a load's requests, of its mean lengths, asked by some users in a closed loop."""
    cached = workload.cached_len / workload.input_len
    arrivals: dict[str, Any] = {"request_rate": None, "burstiness": 1.0, "duration_s": None, "max_concurrency": None}
    return replace(workload, concurrency=users, trace=None, prefix_cache_hit_rate=cached, **arrivals)


def arrival_rate(workload: Workload) -> float:
    """Returns the requests per second that an open loop sends."""
    if workload.trace is None:
        return workload.request_rate or math.inf
    span = int(workload.trace.arrival_ps[-1]) / PICOSECONDS_PER_SECOND
    return len(workload.trace) / span if span else math.inf


def _users_inside(runs: Sequence[Metrics]) -> int:
    """Returns the mean number of requests in the server, by Little's law."""
    inside = fmean(run.request_throughput_per_s * run.e2e_s.mean for run in runs)
    return min(LIMITS["--concurrency"][1], max(1, round(inside)))
