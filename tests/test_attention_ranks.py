"""DP attention: every rank has a scheduler, a KV cache and a host of its own, and all are in step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.engines import ENGINES, Request
from pipesim.engines.attention_ranks import AttentionRanks, joined
from pipesim.engines.sglang import SglangPolicy
from pipesim.prediction import Predictor, deploy, pricer_of
from pipesim.profiles.store import load_hardware, load_model
from pipesim.simulation import simulate
from pipesim.workload import DecodeStep, MixedStep, PrefillChunk, Workload

MODEL, BOX = load_model("glm-4.5-air"), load_hardware("h200-sxm-x8")
SPLIT = deploy(MODEL, BOX, ParallelPlan(8, 1, dp_attention=True), EngineSettings(chunked_prefill_size=8_192))
LLAMA = load_model("llama-3.1-8b")


@given(users=st.integers(1, 12), spread=st.floats(0, 1), seed=st.integers(0, 9), pp=st.sampled_from([1, 2]))
def test_one_rank_is_a_server_without_ranks(users: int, spread: float, seed: int, pp: int) -> None:
    deployment = deploy(
        LLAMA, BOX, ParallelPlan(1, pp), EngineSettings(max_running_requests=8, chunked_prefill_size=256)
    )
    price, load = pricer_of(deployment), Workload(users, 2 * users, 200, 20, spread)
    ends = []
    for of_one in (False, True):
        policy = SglangPolicy(deployment, 3_000)
        requests = [
            Request(i, spec.input_len, spec.output_len, 0, spec.submit_ps) for i, spec in enumerate(load.draw(seed))
        ]
        run = simulate(
            AttentionRanks([policy]) if of_one else policy, price, requests, stages=pp, users=users, idle_turn=1_000
        )
        ends.append(run.last_token)
    assert np.array_equal(*ends)


def test_each_rank_takes_its_share_of_chunk_rows_and_kv() -> None:
    policy = ENGINES["sglang"].policy(SPLIT, 80_000)
    for index in range(16):
        policy.submit(Request(index, 5_000, 10, 0, 0))
    formed = policy.form(0)
    assert formed is not None
    assert isinstance(formed.batch, PrefillChunk)
    assert formed.batch.tokens == 8_192, "every rank an eighth of a chunk, together a whole one"
    assert formed.batch.holders == 8


def test_while_one_rank_has_a_prompt_the_others_go_on_decoding_without_a_graph() -> None:
    policy = ENGINES["sglang"].policy(SPLIT, 80_000)
    for index in range(8):
        policy.submit(Request(index, 100, 50, 0, 0))
    for turn in range(3):
        formed = policy.form(0)
        assert formed is not None
        policy.complete(formed, turn)
    assert formed.batch.captured
    policy.submit(Request(8, 100, 50, 0, 0))
    formed = policy.form(0)
    assert formed is not None
    batch = formed.batch
    assert isinstance(batch, MixedStep)
    assert (batch.decode.requests, batch.prefill.tokens, batch.captured) == (7, 100, False)


def test_ranks_are_padded_to_the_fullest_and_run_as_graphs_all_or_none() -> None:
    few, many = DecodeStep(2, 640, 2, True), DecodeStep(5, 1_280, 8, True)
    together = joined([few, many], 4)
    assert (together.requests, together.rows, together.captured) == (7, 32, True)
    assert 2 * 640 + 5 * 1_280 <= 7 * together.kv_tokens < 2 * 640 + 5 * 1_280 + 7 * 64
    assert not joined([few, DecodeStep(900, 64, 900, False)], 4).captured


def test_a_step_of_both_kinds_lasts_as_long_as_the_slower_rank() -> None:
    price, decode = pricer_of(SPLIT), DecodeStep(70, 20_480, 70, False)
    prompt = PrefillChunk(1_024, 1, 1_024 * 512, 1, 0, absorbed=False, holders=1)
    total = {
        attends: price(MixedStep(decode, prompt, captured=False, attends=attends)).totals[0]
        for attends in ("apart", "decode", "prefill", "both")
    }
    assert total["apart"] == max(total["decode"], total["prefill"])
    assert total["both"] > total["apart"]


def test_a_hosts_time_is_that_of_its_own_ranks_requests() -> None:
    step = DecodeStep(80, 1_024, 80, True)
    whole = pricer_of(deploy(MODEL, BOX, ParallelPlan(8, 1), EngineSettings()))
    assert pricer_of(SPLIT)(step).process == whole(step._replace(requests=10)).process < whole(step).process


def test_thousands_of_users_are_not_bound_by_one_host() -> None:
    # gpt-oss-120b on four B200, DP4 EP4, 2,560 users, 1,024 in and 2,048 out: 66,941 tok/s (sglang issue 9359).
    plan = ParallelPlan(4, 1, ep=4, dp_attention=True)
    found = Predictor(deploy(load_model("gpt-oss-120b"), load_hardware("b200-sxm-x4"), plan, EngineSettings()))
    rate = found.predict(Workload(2_560, 2_560, 1_024, 2_048), 1).mean("output_tokens_per_s")
    assert rate == pytest.approx(66_941, rel=0.2)
