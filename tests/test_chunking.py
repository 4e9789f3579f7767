"""SGLang's two ways with chunks: decodes that ride with them, and sizes that shrink so that each takes as long."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.engines import ENGINES
from pipesim.engines.chunk_sizer import ALIGNMENT, ChunkSizer, fitted
from pipesim.errors import UsageError
from pipesim.metrics import summarise
from pipesim.prediction import deploy
from pipesim.profiles.store import load_hardware
from pipesim.workload import Batch, MixedStep, PrefillChunk, Workload
from tests.conftest import BOX, KIMI, RunCli, predictor

sizers = st.builds(
    ChunkSizer,
    a=st.floats(1e-3, 10.0),
    b=st.floats(0.0, 1e5),
    base=st.integers(256, 16_384),
    smooth=st.floats(0.0, 1.0),
    most=st.just(16_384),
    positions=st.just(262_144),
)


def batches(tp: int, pp: int, workload: Workload, **flags: object) -> list[Batch]:
    """Returns what is launched in a run, in order."""
    asked = predictor(tp, pp, **flags)
    seen, price = [], asked.price

    def spy(batch):  # type: ignore[no-untyped-def]
        seen.append(batch)
        return price(batch)

    for name in ("idle_turn", "operations", "front_end"):
        setattr(spy, name, getattr(price, name))
    asked.price = spy  # type: ignore[assignment]
    asked.simulate(workload, seed=0)
    timed = 127 if flags.get("enable_dynamic_chunking") else 0
    return seen[timed:]


@given(sizer=sizers, history=st.integers(0, 200_000))
def test_the_next_chunk_takes_as_long_as_the_first(sizer: ChunkSizer, history: int) -> None:
    def f(length: float) -> float:
        return sizer.a * length**2 + sizer.b * length

    assert f(history + sizer.equal_time(history)) - f(history) == pytest.approx(f(sizer.base), rel=1e-4)


@given(sizer=sizers)
def test_chunks_shrink_with_the_history_to_no_less_than_a_quarter(sizer: ChunkSizer) -> None:
    sizes = [sizer.next_chunk(history) for history in range(0, 200_000, 20_000)]
    assert all(later <= earlier for earlier, later in pairwise(sizes))
    assert all(size % ALIGNMENT == 0 and size <= sizer.most for size in sizes)
    assert min(sizes) >= max(ALIGNMENT, sizer.base // 4 // ALIGNMENT * ALIGNMENT)


def test_near_the_end_of_the_models_context_the_margin_is_kept_or_the_set_size_taken() -> None:
    sizer = ChunkSizer(1.0, 1.0, 4_096, 1.0, 16_384, 10_000)
    assert sizer.next_chunk(9_000) <= 10_000 - 9_000 - 100
    assert sizer.next_chunk(9_990) == 4_096


@given(a=st.floats(0.01, 1.0), b=st.floats(10.0, 1e4), base=st.integers(512, 16_384))
def test_a_quadratic_time_is_fitted_and_one_that_does_not_bend_is_refused(a: float, b: float, base: int) -> None:
    limits = {"base": base, "smooth": 1.0, "most": 16_384, "positions": 262_144}
    found = fitted(lambda batch: round(1e6 * (a * batch.tokens**2 + b * batch.tokens)), **limits)
    assert found is not None
    assert (found.a, found.b) == pytest.approx((1e6 * a, 1e6 * b), rel=1e-3)
    assert fitted(lambda batch: round(1e9 * batch.tokens - batch.tokens**2), **limits) is None


def test_dynamic_chunks_even_out_the_stages_and_answer_a_long_prompt_sooner() -> None:
    load = Workload(concurrency=1, num_prompts=1, input_len=100_000, output_len=2)
    chunks = [b for b in batches(2, 4, load, enable_dynamic_chunking=True) if isinstance(b, PrefillChunk)]
    sizes = [chunk.tokens for chunk in chunks]
    assert sum(sizes) == 100_000
    assert sizes[0] == 8_192
    assert all(later <= earlier for earlier, later in pairwise(sizes))
    ttft = [
        summarise(predictor(2, 4, enable_dynamic_chunking=dynamic).simulate(load, 0)).ttft_s.mean
        for dynamic in (False, True)
    ]
    assert ttft[1] < 0.95 * ttft[0]


def test_without_stages_dynamic_chunking_changes_nothing() -> None:
    load = Workload(concurrency=2, num_prompts=2, input_len=40_000, output_len=3)
    runs = [predictor(8, 1, enable_dynamic_chunking=dynamic).simulate(load, 0) for dynamic in (False, True)]
    assert np.array_equal(runs[0].last_token, runs[1].last_token)


def test_decodes_ride_with_the_chunk_within_its_budget() -> None:
    load = Workload(8, 24, 300, 20, 0.5)
    apart, together = (
        batches(2, 4, load, enable_mixed_chunk=mixed, chunked_prefill_size=256) for mixed in (False, True)
    )
    assert not any(isinstance(batch, MixedStep) for batch in apart)
    mixed = [batch for batch in together if isinstance(batch, MixedStep)]
    assert mixed
    assert max(batch.tokens for batch in mixed) <= 256
    assert not any(batch.captured for batch in mixed), "prompts run kernel by kernel, and what rides with them too"


def test_a_long_prompt_stalls_running_requests_less_when_chunks_are_mixed() -> None:
    # Alone, each chunk takes the only slot's turn; mixed, every turn gives the running requests a token.
    load = Workload(2, 8, 6_000, 40, 0.9)
    gaps = {
        mixed: predictor(8, 1, enable_mixed_chunk=mixed, chunked_prefill_size=256).simulate(load, 0).gap.max()
        for mixed in (False, True)
    }
    assert gaps[True] < 0.2 * gaps[False]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"name": "vllm", "enable_mixed_chunk": True}, "--enable-mixed-chunk"),
        ({"name": "rebatch", "enable_dynamic_chunking": True}, "--enable-dynamic-chunking"),
        ({"enable_mixed_chunk": True, "speculative_acceptance": (0.5,)}, "--enable-mixed-chunk"),
        ({"dynamic_chunking_smooth_factor": 0.5}, "--dynamic-chunking-smooth-factor"),
        ({"enable_dynamic_chunking": True, "dynamic_chunking_smooth_factor": 1.5}, "--dynamic-chunking-smooth-factor"),
    ],
)
def test_flags_that_an_engine_does_not_have_are_refused(flags: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        EngineSettings(**flags)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "pp", "starts"),
    [
        ("0.5.10.post1", 4, False),
        ("0.5.22", 4, False),
        ("0.5.10.post1", 1, True),
        ("v0.5.23", 4, True),
        (None, 4, True),
    ],
)
def test_mixed_chunks_under_pp_are_refused_where_the_engine_refuses_them(
    version: str | None, pp: int, starts: bool
) -> None:
    plan, flags = ParallelPlan(8 // pp, pp), EngineSettings(enable_mixed_chunk=True, version=version)
    if starts:
        deploy(KIMI, BOX, plan, flags)
        return
    with pytest.raises(UsageError, match=r"0\.5\.23"):
        deploy(KIMI, BOX, plan, flags)


def test_the_answer_says_which_version_mixes_under_pp(run_cli: RunCli) -> None:
    arguments = ("--pp", 8, "--num-prompts", 4, "--concurrency", 2, "--output-len", 4, "--seeds", 1)
    assert "0.5.23" in run_cli("predict", *arguments, "--enable-mixed-chunk").out
    assert "0.5.23" not in run_cli("predict", *arguments).out


@pytest.mark.parametrize(
    ("hardware", "pp", "version", "tokens", "context", "absorbed"),
    [
        ("rtx-pro-6000-x8", 1, None, 8192, 0, True),  # a captured launch pins it
        ("rtx-pro-6000-x8", 1, "0.5.10", 8192, 0, False),  # up to 2,048 tokens then, and not of vision models
        ("rtx-pro-6000-x8", 4, None, 8192, 0, False),  # Triton without a prefix
        ("rtx-pro-6000-x8", 4, None, 8192, 1, True),  # and with one
        ("h200-sxm-x8", 2, None, 4096, 0, False),  # FlashAttention 3 expands a new prompt,
        ("h200-sxm-x8", 2, None, 4096, 4096, True),  # not over a short prefix,
        ("h200-sxm-x8", 2, None, 4096, 8192, False),  # and again over a long one
        ("b200-sxm-x8", 1, None, 8192, 8192, False),
    ],
)
def test_sglang_attends_to_the_latent_by_backend_and_by_captured_prefill(
    hardware: str, pp: int, version: str | None, tokens: int, context: int, absorbed: bool
) -> None:
    deployment = deploy(KIMI, load_hardware(hardware), ParallelPlan(8 // pp, pp), EngineSettings(version=version))
    assert ENGINES["sglang"].absorbs(deployment, tokens, context) == absorbed
    assert not ENGINES["vllm"].absorbs(deployment, tokens, context)
