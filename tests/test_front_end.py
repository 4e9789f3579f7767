"""What stands between clients and the scheduler: HTTP and tokenizer on the way in, the detokenizer on the way out."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest
import simpy
import tomlkit
from hypothesis import given
from hypothesis import strategies as st

from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.engines import Request
from pipesim.engines.base import DecodeGaps
from pipesim.errors import ProfileError
from pipesim.passes import NO_FRONT_END, FrontEndPrice
from pipesim.prediction import Prediction, Predictor, deploy
from pipesim.profiles.hardware import FrontEnd, HardwareProfile
from pipesim.profiles.store import document_of, load_hardware, load_model, read_toml
from pipesim.reasons import binding_limit
from pipesim.simulation import simulate
from pipesim.simulation.users import Server
from pipesim.timeline import Timeline
from pipesim.workload import Workload
from tests.conftest import BOX, ROOT, RunCli, predictor
from tests.test_loads import OneByOne, price

MS = 10**9
"""Picoseconds."""
SGLANG = BOX.host.front_end["sglang"]
STATED = ROOT / "hardware_profiles" / "rtx-pro-6000-x8.toml"

ENGINES: list[dict[str, object]] = [{"name": "sglang"}, {"name": "vllm"}, {"name": "vllm", "async_scheduling": False}]

front_ends = st.builds(
    FrontEndPrice,
    per_request=st.integers(0, 900),
    per_dispatch=st.integers(0, 300),
    per_prompt_token=st.integers(0, 3),
    per_output=st.integers(0, 50),
    latency=st.integers(0, 50_000),
    round_trip=st.integers(0, 2_000),
)

SCHEDULERS: list[dict[str, object]] = [
    {"name": "sglang"},
    {"name": "vllm"},
    {"name": "vllm", "async_scheduling": False},
]


class Recorder:
    """A scheduler's queue that notes when it gets a request."""

    def __init__(self, environment: simpy.Environment) -> None:
        self._environment = environment
        self.decode_gaps = DecodeGaps()
        self.times: dict[int, int] = {}

    def submit(self, request: Request) -> None:
        self.times[request.index] = int(self._environment.now)


def reached(front_end: FrontEndPrice, arrivals: Sequence[int], prompts: Iterable[int]) -> dict[int, int]:
    """Returns when each request reaches the scheduler, in the order in which they do."""
    environment = simpy.Environment()
    queue = Recorder(environment)
    server = Server(environment, queue, front_end)

    def client() -> Iterable[simpy.Event]:
        for index, (at, prompt) in enumerate(zip(arrivals, prompts, strict=True)):
            yield environment.timeout(at - int(environment.now))
            server.submit(Request(index, prompt, 1, 0, at, sent_len=prompt))

    environment.process(client())  # type: ignore[arg-type]
    environment.run()
    return queue.times


def box_with(engine: str = "sglang", **times: float) -> HardwareProfile:
    """Returns the founding box with other times of an engine's front end; all that are not named are zero."""
    stated = {name: f"{times.get(name, 0.0)} s" for name in FrontEndPrice._fields}
    own = FrontEnd.model_validate({**stated, "source": "front-end"})
    return BOX.model_copy(update={"host": BOX.host.model_copy(update={"front_end": {engine: own}})})


def served(front_end: FrontEndPrice, prompts: Sequence[int], users: int) -> Timeline:
    """Runs a closed loop on a server of one place, where a prompt of n tokens takes n nanoseconds and is answered."""
    requests = [Request(index, prompt, 1, 0, 0, sent_len=prompt) for index, prompt in enumerate(prompts)]
    return simulate(OneByOne(), price, requests, stages=1, users=users, idle_turn=0, front_end=front_end)


# --- the way in


@given(front_end=front_ends, prompts=st.lists(st.integers(1, 500), min_size=1, max_size=12))
def test_of_a_burst_all_are_parsed_before_the_first_is_encoded_and_they_come_one_encoding_apart(
    front_end: FrontEndPrice, prompts: list[int]
) -> None:
    times = list(reached(front_end, [0] * len(prompts), prompts).values())
    encodings = [front_end.encode(prompt) for prompt in prompts]
    if front_end == NO_FRONT_END:
        assert times == [0] * len(prompts)
        return
    assert times[0] == front_end.latency + len(prompts) * front_end.per_request + encodings[0]
    assert [later - earlier for earlier, later in pairwise(times)] == encodings[1:]


@given(
    front_end=front_ends,
    gaps=st.lists(st.integers(0, 2_000), min_size=1, max_size=25),
    prompts=st.lists(st.integers(1, 500), min_size=25, max_size=25),
)
def test_the_intake_rests_only_when_it_has_nothing_to_do_and_nobody_overtakes(
    front_end: FrontEndPrice, gaps: list[int], prompts: list[int]
) -> None:
    arrivals = np.cumsum(gaps).tolist()
    times = reached(front_end, arrivals, prompts[: len(gaps)])
    assert list(times) == sorted(times)
    free = 0  # Lindley's recursion: when all the work that has come is done
    for index, (at, prompt) in enumerate(zip(arrivals, prompts, strict=False)):
        came = at + front_end.latency
        assert times[index] >= came + front_end.accept(prompt)
        free = max(free, came) + front_end.accept(prompt)
    assert max(times.values()) == free


@pytest.mark.parametrize("utilisation", [0.3, 0.6, 0.8])
def test_poisson_arrivals_wait_for_the_tokenizer_as_in_m_d_1(utilisation: float) -> None:
    # Mean wait ρ / (2 (1 − ρ)) encodings (Kleinrock, Queueing Systems I, 5.63), when parsing costs nothing.
    front_end = FrontEndPrice(per_dispatch=MS // 2, per_prompt_token=MS // 200, latency=7 * MS)
    encoding = front_end.encode(100)
    assert encoding == MS
    waits = []
    for seed in range(6):
        arrivals = np.cumsum(np.random.default_rng(seed).exponential(encoding / utilisation, 20_000)).astype(int)
        times = reached(front_end, arrivals.tolist(), [100] * len(arrivals))
        waits.append(fmean(times[i] - at for i, at in enumerate(arrivals.tolist())) / encoding - 1.0 - 7.0)
    expected, error = utilisation / (2.0 * (1.0 - utilisation)), stdev(waits) / math.sqrt(len(waits))
    assert error < 0.05 * expected
    assert abs(fmean(waits) - expected) < 4 * error + 0.005 * expected


def test_users_who_ask_again_pass_through_it_as_well() -> None:
    load = Workload(concurrency=4, num_prompts=12, input_len=300, output_len=6, spacing_s=0.0)
    slow = predictor(8, 1, box_with(per_prompt_token=1e-4)).simulate(load, 0)
    assert ((slow.first_token - slow.arrival) >= 300 * 1e-4 * 1e12).all()


def test_the_gap_between_clients_sends_is_their_own_whatever_the_front_end_takes() -> None:
    load = Workload(concurrency=6, num_prompts=6, input_len=60, output_len=4, spacing_s=0.003)
    asked = [spec.submit_ps for spec in load.draw(2)]
    for box in (box_with(), BOX, box_with(per_request=0.5)):
        assert predictor(8, 1, box).simulate(load, 2).arrival.tolist() == asked


# --- the way out


@given(front_end=front_ends, prompts=st.lists(st.integers(1, 9_000), min_size=3, max_size=12), users=st.integers(1, 3))
def test_a_client_asks_again_one_round_trip_after_it_sees_its_answers_end(
    front_end: FrontEndPrice, prompts: list[int], users: int
) -> None:
    timeline = served(front_end, prompts, users)
    again = sorted(timeline.arrival.tolist()[users:])
    assert again == (np.sort(timeline.last_token)[: len(again)] + front_end.round_trip).tolist()


@pytest.mark.parametrize(
    "settings", [{"name": "sglang"}, {"name": "vllm"}, {"name": "vllm", "async_scheduling": False}]
)
@pytest.mark.parametrize("split", [(8, 1), (2, 4)])
def test_the_same_holds_with_the_engines_schedulers(split: tuple[int, int], settings: dict[str, object]) -> None:
    load = Workload(concurrency=5, num_prompts=15, input_len=200, output_len=9, random_range_ratio=0.5)
    asked = predictor(*split, **settings)
    timeline = asked.simulate(load, 1)
    again = sorted(timeline.arrival.tolist()[5:])
    ends = np.sort(timeline.last_token)[: len(again)]
    assert again == (ends + asked.price.front_end.round_trip).tolist()
    for other in ("stage", "op"):
        same = asked.simulate(load, 1, other)  # type: ignore[arg-type]
        assert (same.arrival == timeline.arrival).all()
        assert (same.last_token == timeline.last_token).all()


@given(front_end=front_ends, prompts=st.lists(st.integers(1, 9_000), min_size=2, max_size=9))
def test_with_one_user_it_adds_what_the_closed_form_says(front_end: FrontEndPrice, prompts: list[int]) -> None:
    timeline = served(front_end, prompts, 1)
    period = np.diff(timeline.arrival).tolist()
    assert period == [prompt * 1_000 + front_end.unqueued(prompt, 1) for prompt in prompts[:-1]]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("split", [(8, 1), (2, 4), (1, 8)])
def test_the_closed_form_of_one_user_gains_what_the_simulation_does(engine: str, split: tuple[int, int]) -> None:
    # Behind a long round trip, so that the launch that runs ahead of a result (overlap) hides in it either way.
    load = Workload(concurrency=1, num_prompts=4, input_len=200, output_len=40)
    times = {"per_request": 5e-4, "per_dispatch": 1e-4, "per_prompt_token": 2e-6, "per_output": 1e-5, "latency": 0.03}
    boxes = [box_with(engine, round_trip=0.1), box_with(engine, round_trip=0.1, **times)]
    bare, full = (predictor(*split, box, name=engine).predict(load, 1) for box in boxes)
    added = 0.03 + 5e-4 + 1e-4 + 200 * 2e-6 + 1e-5
    assert full.front_end.unqueued(200, 1) / 1e12 == pytest.approx(0.1 + added, rel=1e-9)
    assert full.closed_form.front_end_s - bare.closed_form.front_end_s == pytest.approx(added, rel=1e-9)
    generation = [load.output_len / asked.closed_form.output_tokens_per_s for asked in (bare, full)]
    assert generation[1] - generation[0] == pytest.approx(added, rel=1e-9)
    assert full.mean("duration_s") - bare.mean("duration_s") == pytest.approx(4 * added, rel=1e-9)
    assert full.latency("ttft_s").mean - bare.latency("ttft_s").mean == pytest.approx(added, rel=1e-9)
    assert full.latency("tpot_s").mean == pytest.approx(bare.latency("tpot_s").mean, rel=1e-9)


def test_none_at_all_and_one_that_takes_no_time_give_the_same_times() -> None:
    load = Workload(concurrency=6, num_prompts=18, input_len=200, output_len=9, random_range_ratio=0.5)
    none = BOX.model_copy(update={"host": BOX.host.model_copy(update={"front_end": {}})})
    bare, zero = (predictor(2, 4, box).simulate(load, 1) for box in (none, box_with()))
    assert (bare.last_token == zero.last_token).all()
    assert (bare.arrival == zero.arrival).all()


@pytest.mark.parametrize(
    "settings", [{"name": "sglang"}, {"name": "vllm"}, {"name": "vllm", "async_scheduling": False}]
)
@pytest.mark.parametrize("split", [(8, 1), (2, 4)])
def test_every_token_is_handed_out_once_also_by_a_launch_that_runs_ahead_of_a_result(
    split: tuple[int, int], settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    handed_out = []
    deliver = Server.deliver

    def noted(server: Server, at: int, outputs: int) -> int:
        handed_out.append(outputs)
        return deliver(server, at, outputs)

    monkeypatch.setattr(Server, "deliver", noted)
    load = Workload(concurrency=5, num_prompts=15, input_len=200, output_len=9, random_range_ratio=0.5)
    timeline = predictor(*split, **settings).simulate(load, 1)
    assert sum(handed_out) == int(timeline.output_len.sum())


# --- where it binds


LOAD = Workload(concurrency=64, num_prompts=384, input_len=100, output_len=20, steady=True, spacing_s=0.001)


def crowded(**times: float) -> Prediction:
    return predictor(8, 1, box_with(**times)).predict(LOAD, 1)


@pytest.mark.parametrize(
    ("times", "metric", "limit"),
    [
        ({"per_request": 0.01, "per_dispatch": 0.08, "per_prompt_token": 1e-4}, "request_throughput_per_s", 10.0),
        ({"per_output": 0.03}, "output_tokens_per_s", 100.0 / 3.0),
    ],
)
def test_serial_work_is_the_limit_of_what_many_users_get_and_the_answer_names_it(
    times: dict[str, float], metric: str, limit: float
) -> None:
    free, bound = crowded(), crowded(**times)
    assert free.mean(metric) > 2 * limit
    assert bound.mean(metric) == pytest.approx(limit, rel=0.03)
    closed = bound.closed_form.output_tokens_per_s / (1 if metric == "output_tokens_per_s" else LOAD.output_len)
    assert closed == pytest.approx(limit, rel=1e-9)
    assert bound.front_end_utilisation == pytest.approx(1.0, abs=0.03)
    assert "Front-end-bound" in binding_limit(bound)
    assert free.front_end_utilisation == 0.0
    assert "Front-end-bound" not in binding_limit(free)


def test_every_replica_has_a_front_end_of_its_own() -> None:
    slow = box_with(per_output=0.03)
    load = replace(LOAD, concurrency=32, num_prompts=192)
    llama = load_model("llama-3.1-8b")
    one, two = (
        Predictor(deploy(llama, slow, ParallelPlan(1, replicas=servers), EngineSettings())).predict(load, 1)
        for servers in (1, 2)
    )
    assert two.mean("output_tokens_per_s") == pytest.approx(2 * one.mean("output_tokens_per_s"), rel=0.05)
    assert one.front_end_utilisation == pytest.approx(two.front_end_utilisation, abs=0.05)


def test_a_small_model_with_thousands_of_users_is_bound_by_it_as_the_box_comes(run_cli: RunCli) -> None:
    flags = ("--model", "llama-3.1-8b", "--hardware", "b200-sxm-x8", "--engine", "vllm", "--tp", 4, "--seeds", 1)
    load = ("--concurrency", 1_024, "--num-prompts", 2_048, "--input-len", 32, "--output-len", 8)
    assert "Front-end-bound" in run_cli("predict", *flags, *load).out
    assert "Front-end-bound" not in run_cli("predict", "--tp", 8, "--seeds", 1, "--output-len", 8).out


# --- profiles


def test_a_profile_that_states_none_has_the_engines_as_they_come(tmp_path: Path) -> None:
    document = read_toml(STATED)
    assert "front_end" not in document["host"]
    path = tmp_path / "mine.toml"
    path.write_text(tomlkit.dumps(document), encoding="utf-8")
    assert load_hardware(str(path)).host.front_end == BOX.host.front_end
    assert set(BOX.host.front_end) == {"sglang", "vllm"}
    assert BOX.sources[SGLANG.source].basis == "fitted"


def write(path: Path, front_end: dict[str, object]) -> str:
    document = read_toml(STATED)
    document["host"]["front_end"] = front_end
    document["sources"]["mine"] = {"basis": "measured", "text": "on this box"}
    path.write_text(tomlkit.dumps(document), encoding="utf-8")
    return str(path)


OWN: dict[str, object] = {
    "per_request": "2 ms",
    "per_dispatch": "0.2 ms",
    "per_prompt_token": "3 us",
    "per_output": "20 us",
    "latency": "9 ms",
    "round_trip": "4 ms",
    "source": "mine",
}


def test_a_profile_with_its_own_keeps_it_and_has_the_other_engines_as_it_comes(tmp_path: Path) -> None:
    host = load_hardware(write(tmp_path / "mine.toml", {"vllm": OWN})).host
    assert host.front_end["vllm"].latency == 0.009
    assert host.front_end["vllm"].source == "mine"
    assert host.front_end["sglang"] == SGLANG


def test_a_borrowed_box_takes_its_relatives(tmp_path: Path) -> None:
    lender = write(tmp_path / "lender.toml", {"sglang": OWN})
    borrower = read_toml(ROOT / "hardware_profiles" / "rtx-pro-6000-max-q-x8.toml")
    borrower["borrows"]["profile"] = lender
    path = tmp_path / "borrower.toml"
    path.write_text(tomlkit.dumps(borrower), encoding="utf-8")
    box = load_hardware(str(path))
    lent = box.host.front_end["sglang"]
    assert (lent.per_request, lent.latency) == (0.002, 0.009)
    assert "on this box" in box.sources[lent.source].text
    assert document_of(box)["host"]["front_end"].keys() == {"sglang", "vllm"}


@pytest.mark.parametrize(
    ("key", "given_", "wanted"), [("latency", 30, "s"), ("per_output", "10 B", "s"), ("round_trip", "-1 ms", "s")]
)
def test_a_time_without_a_unit_is_refused_with_file_and_key(
    tmp_path: Path, run_cli: RunCli, key: str, given_: object, wanted: str
) -> None:
    path = write(tmp_path / "mine.toml", {"vllm": {**OWN, key: given_}})
    with pytest.raises(ProfileError, match=rf"mine\.toml: host\.front_end\.vllm\.{key}: .* is wanted"):
        load_hardware(path)
    ran = run_cli("predict", "--tp", 8, "--hardware", path)
    assert (ran.code, ran.out) == (2, "")
    assert f"host.front_end.vllm.{key}" in ran.err
    assert wanted in ran.err
