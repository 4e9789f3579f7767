"""Launch lines: what is written for a deployment, and what other people's commands mean to pipesim."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from pipesim.asking import asks
from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.engines import ENGINES
from pipesim.engines.base import settle
from pipesim.errors import UsageError
from pipesim.launch import DIALECTS
from pipesim.launch.read import Imported, distinct, matching_profile, read
from pipesim.launch.servers import servers
from pipesim.launch.write import launch, one_line, wrapped
from pipesim.options import Question
from pipesim.planning.flags import arguments
from tests.conftest import BOX, KIMI, RunCli

DATA = Path(__file__).parent / "data" / "launch"


def imported(text: str) -> list[Imported]:
    return distinct([read(server) for server in servers(text)])


def asked(line: str) -> Question:
    """The question that a pasted `pipesim predict …` asks."""
    app, questions = typer.Typer(), list[Question]()

    @app.command()
    @asks
    def predict(asked: Question) -> None:
        questions.append(asked)

    app(shlex.split(line)[2:], standalone_mode=False)
    return questions[0]


@st.composite
def plans(draw: st.DrawFn, engine: str) -> ParallelPlan:
    tp = draw(st.sampled_from([1, 2, 4, 8]))
    pp = draw(st.integers(1, 8 // tp))
    ep = draw(st.sampled_from([1, tp] if engine == "vllm" else [d for d in (1, 2, 4, 8) if tp % d == 0]))
    attention = engine == "sglang" and tp > 1 and draw(st.booleans())
    dcp = 1 if attention else draw(st.sampled_from([d for d in (1, 2, 4, 8) if tp % d == 0]))
    layers = None
    if pp > 1 and draw(st.booleans()):
        cuts = sorted(draw(st.sets(st.integers(1, 60), min_size=pp - 1, max_size=pp - 1)))
        layers = tuple(b - a for a, b in zip([0, *cuts], [*cuts, 61], strict=True))
    replicas = draw(st.integers(1, 8 // (tp * pp)))
    gpus = tuple(draw(st.permutations(range(8)))[: tp * pp * replicas])
    placement = gpus if gpus != tuple(sorted(gpus)) and draw(st.booleans()) else None
    return ParallelPlan(tp, pp, layers, ep, attention, dcp, replicas, placement=placement)


def maybe(strategy: st.SearchStrategy[int]) -> st.SearchStrategy[int | None]:
    return st.none() | strategy


@st.composite
def settings_of(draw: st.DrawFn, engine: str) -> EngineSettings:
    shared = {
        "cuda_graph": draw(st.booleans()),
        "peer_access": draw(st.sampled_from([None, False])),
        "max_running_requests": draw(maybe(st.integers(512, 4096))),
        "chunked_prefill_size": draw(maybe(st.integers(16, 65536))),
        "kv_cache_dtype": draw(st.sampled_from(["auto", "bf16", "fp8"])),
        "allreduce": draw(st.sampled_from(["auto", "nccl", "pcie-oneshot"])),
        "speculative_acceptance": tuple(draw(st.lists(st.sampled_from([0.5, 0.7]), max_size=4))),
    }
    shared["context_length"] = draw(maybe(st.integers(1_024, 262_144)))
    share = draw(st.none() | st.floats(0.1, 0.99))
    if engine == "vllm":
        own = {"gpu_memory_utilization": share, "async_scheduling": draw(st.sampled_from([None, False]))}
        own["prefill_schedule_interval"] = draw(st.integers(1, 64))
    else:
        own = {
            "mem_fraction_static": share,
            "pp_max_micro_batch_size": draw(maybe(st.integers(1, 64))),
            "pp_async_batch_depth": draw(st.integers(0, 4)),
            "prefill_decode_interval": draw(st.integers(0, 64)),
            "prefill_decode_interval_min_bs": draw(st.integers(0, 64)),
            "schedule_conservativeness": draw(st.sampled_from([0.3, 1.0, 1.5])),
            "enable_dynamic_chunking": draw(st.booleans()),
            "enable_mixed_chunk": not shared["speculative_acceptance"] and draw(st.booleans()),
        }
    return EngineSettings(name=engine, **shared, **own)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", DIALECTS)
@given(data=st.data())
def test_a_launch_line_read_back_is_the_deployment_it_was_written_for(engine: str, data: st.DataObject) -> None:
    plan, settings = data.draw(plans(engine)), data.draw(settings_of(engine))
    share, deployment = ENGINES[engine].share, settle(KIMI, BOX, plan, settings, ENGINES[engine])
    started = launch(deployment)
    for text in ("\n".join(map(one_line, started.lines)), "\n".join(map(wrapped, started.lines))):
        (back,) = imported(text)
        assert back.plan == plan
        assert share.stated(back.settings) == pytest.approx(share.of(deployment), abs=1e-4)
        same = {share.field: share.stated(settings), "speculative_acceptance": (), "context_length": None}
        room = ENGINES[engine].kv_capacity_tokens(deployment)
        if settings.context_length and room >= settings.context_length:
            assert back.settings.context_length == settings.context_length
        assert replace(back.settings, **same) == replace(settings, **same)  # type: ignore[arg-type]
        drafts = [entry.given for entry in back.unsupported]
        assert drafts == [f"{settings.draft_tokens} draft tokens"] * bool(settings.draft_tokens)
        pasted = asked(back.predict)
        assert (pasted.model, pasted.plan, pasted.settings) == ("kimi-k2.6", back.plan, back.settings)


@pytest.mark.parametrize("engine", DIALECTS)
@given(data=st.data())
def test_the_command_that_a_plan_prints_asks_about_that_very_deployment(engine: str, data: st.DataObject) -> None:
    plan, settings = data.draw(plans(engine)), data.draw(settings_of(engine))
    share, deployment = ENGINES[engine].share, settle(KIMI, BOX, plan, settings, ENGINES[engine])
    pasted = asked(shlex.join(["pipesim", "predict", *arguments(deployment)]))
    assert (pasted.model, pasted.hardware, pasted.plan) == (KIMI.name, BOX.name, plan)
    assumed = share.stated(pasted.settings) if deployment.memory_note else share.stated(settings)
    assert pasted.settings == replace(settings, **{share.field: assumed})  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", DIALECTS)
@given(data=st.data())
def test_every_flag_written_is_one_of_the_engines(engine: str, data: st.DataObject) -> None:
    plan, settings = data.draw(plans(engine)), data.draw(settings_of(engine))
    vocabulary = DIALECTS[engine].vocabulary
    for line in launch(settle(KIMI, BOX, plan, settings, ENGINES[engine])).lines:
        for word in line.words:
            name = word.removeprefix("--").removeprefix("no-")
            assert not word.startswith("--") or name in vocabulary.known


@pytest.mark.parametrize("engine", DIALECTS)
def test_every_rule_and_reason_is_about_a_flag_that_exists(engine: str) -> None:
    vocabulary = DIALECTS[engine].vocabulary
    assert set(DIALECTS[engine].rules) <= vocabulary.known
    assert set(vocabulary.aliases.values()) <= vocabulary.known
    assert not (vocabulary.switches & vocabulary.values or vocabulary.lists & vocabulary.known - vocabulary.lists)
    for patterns, _ in vocabulary.changes:
        for pattern in patterns.split():
            one = replace(vocabulary, changes=((pattern, "hit"),))
            assert any(one.why_changed(flag) for flag in vocabulary.known), pattern


SPELLINGS = {
    "sglang": [
        "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.6 --tp 2 --pp-size 4 --max-running-requests 64",
        "python3 -m sglang.launch_server --model=moonshotai/Kimi-K2.6 --tensor-parallel-size=2 "
        "--pipeline-parallel-size=4 --max-running-requests=64",
        "sglang serve moonshotai/Kimi-K2.6 --tp-size 2 \\\n   --pp-size 4 \\  \n --max-running-requests 64",
        "$ sglang serve --model-path moonshotai/Kimi-K2.6\n    --tp-size 2\n    --pp-size 4\n    --max-running 64",
        "docker run --gpus all --shm-size 32g -p 30000:30000 --ipc=host lmsysorg/sglang:latest python3 -m "
        "sglang.launch_server --model-path moonshotai/Kimi-K2.6 --tp 2 --pp-size 4 --max-running-requests 64",
        'M=moonshotai/Kimi-K2.6; A=(--tp 2 # split\n --pp-size 4)\nbash -c "sglang serve $M ${A[*]} '
        '--max-running-requests 64"',
        "```bash\nsglang serve Kimi-K2.6 --tp 2 --pp-size 4 `\n --max-running-requests 64\n```",
        "nohup sglang serve /models/Kimi-K2.6/ –tp 2 —pp-size 4 --max_running_requests “64” > log 2>&1 &",
    ],
    "vllm": [
        "vllm serve moonshotai/Kimi-K2.6 -tp 2 -pp 4 --max-num-seqs 64",
        "vllm serve --max_num_seqs=64 -tp=2 --pipeline_parallel_size 4 moonshotai/Kimi-K2.6",
        "python -m vllm.entrypoints.openai.api_server --model moonshotai/Kimi-K2.6 --tensor-parallel-size 2 "
        "--pipeline-parallel-size 4 --max-num-seqs 64",
        "HF_TOKEN=x docker run --runtime nvidia -it --rm -e HF_TOKEN vllm/vllm-openai:v0.33.0 "
        "--model /root/.cache/huggingface/hub/models--moonshotai--Kimi-K2.6/snapshots/0a1b -tp 2 -pp 4 "
        "--max-num-seqs 64",
        "[Service]\nEnvironment=TP=2\nExecStart=/opt/bin/vllm serve Kimi-K2.6 -tp ${TP} -pp 4 --max-num-seqs 64",
        'export TP=2\r\nvllm serve kimi-k2.6 -tp $TP -pp ${PP:-4} --max-num-seqs ${S:=64} "$@"\r\n',
        "uv run vllm serve 'Kimi-K2.6' -tp 2 -pp 4 \\\n  # --enforce-eager \\\n  --max-num-seqs 64 | tee log",
    ],
}


@pytest.mark.parametrize(("engine", "line"), [(engine, line) for engine, lines in SPELLINGS.items() for line in lines])
def test_one_server_is_read_alike_however_it_is_spelt(engine: str, line: str) -> None:
    (server,) = imported(line)
    expected = {"model": "kimi-k2.6", "engine": engine, "tp": 2, "pp": 4, "max_running_requests": 64}
    assert server.flags == expected
    assert server.unsupported == ()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("trtllm-serve m --tp 8", "SGLang or vLLM"),
        ("vllm serve --tensor-parallel-size 8", "no model"),
        ("python -m sglang.launch_server --tp 8", "no model"),
        ("vllm serve m --served-model-name 'x", "a closing '"),
        ('vllm serve m\nexport A="b', "line 2: '\"b'"),
        ("sglang serve m --tp 8 --tensor-parallel-size 4", "--tp and --tensor-parallel-size: '8 and 4'"),
        ("vllm serve m --enforce-eager --no-enforce-eager", "--enforce-eager and --no-enforce-eager"),
        ("vllm serve m --model other", "contradict"),
        ("vllm serve m -tp", "-tp: 'nothing'"),
        ("vllm serve m -tp --max-num-seqs 8", "-tp: '--max-num-seqs'"),
        ("vllm serve m -tp eight", "a whole number"),
        ("vllm serve m -tp 0", "--tp: 0"),
        ("vllm serve m -tp $TP", "only a shell would know"),
        ("vllm serve m --gpu-memory-utilization 94", "--gpu-memory-utilization: 94"),
        ("vllm serve m --speculative-config '{num: 1'", "a JSON object"),
        ("sglang serve m --tp 8 --ep 3", "--ep with --tp 8"),
        ("VLLM_PP_LAYER_PARTITION=30,31 vllm serve m -pp 4", "VLLM_PP_LAYER_PARTITION: '30,31'"),
        ("VLLM_PP_LAYER_PARTITION=a vllm serve m -pp 4", "whole numbers with commas"),
        ("missing-compose.yml", "a file that exists"),
        ("", "a command that starts a server"),
    ],
)
def test_what_cannot_be_read_is_one_message(run_cli: RunCli, line: str, says: str) -> None:
    ran = run_cli("import", "launch", line)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.count("\n") == 1


@given(
    st.lists(
        st.sampled_from(
            [
                *"'\"\\\n;&|()<>#$`= ",
                "vllm serve m ",
                "--tp",
                " 8 ",
                "<<EOF",
                "${A",
                "A=(",
                "-O",
                "--no-x",
                "{}",
                "-cc.",
            ]
        ),
        max_size=20,
    )
)
def test_any_text_is_read_or_refused(parts: list[str]) -> None:
    try:
        imported("".join(parts))
    except UsageError as refused:
        assert "wanted" in str(refused)


def test_a_compose_file_gives_each_server_and_skips_what_is_none(run_cli: RunCli) -> None:
    ran = run_cli("import", "launch", DATA / "docker-compose.yml", "--json")
    document = ran.json
    assert (document["schema_version"], document["kind"], document["engine"]) == (1, "launch", "sglang")
    first, second = document["servers"]
    assert first["flags"] == document["flags"]
    assert first["flags"] == {"model": "kimi-k2.6", "engine": "sglang", "tp": 4, "pp": 2, "p2p": False}
    assert second["flags"]["layer_partition"] == "15,15,15,16"
    assert second["flags"]["engine"] == "vllm"
    assert [entry["flag"] for entry in second["unsupported"]] == ["--lora-modules"]
    one = run_cli("import", "launch", DATA / "docker-compose.yml", "--service", "second")
    assert one.out.strip() == second["predict"]
    assert "adapters" in one.err


def test_a_broken_compose_file_names_its_line(run_cli: RunCli, tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text("services:\n  a:\n    command: [vllm, serve\n", encoding="utf-8")
    ran = run_cli("import", "launch", path)
    assert ran.code == 2
    assert "compose.yaml, line 4" in ran.err


def test_a_compose_file_takes_the_variables_beside_it(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TP=4\nexport PP='2'\n", encoding="utf-8")
    path = tmp_path / "compose.yml"
    line = "--model kimi-k2.6 -tp ${TP} -pp ${PP}"
    path.write_text(f"services: {{a: {{image: vllm/vllm-openai, command: '{line}'}}}}\n", encoding="utf-8")
    assert imported(str(path))[0].plan == ParallelPlan(4, 2)


def test_equal_servers_on_gpus_of_their_own_are_replicas() -> None:
    line = "CUDA_VISIBLE_DEVICES={} sglang serve kimi-k2.6 --tp 4 --port {} &\n"
    (two,) = imported(line.format("0,1,2,3", 30000) + line.format("4,5,6,7", 30001))
    assert two.plan.replicas == 2
    (branches,) = imported("if x; then vllm serve kimi-k2.6; else vllm serve kimi-k2.6; fi")
    assert branches.plan.replicas == 1
    (data_parallel,) = imported("sglang serve kimi-k2.6 --tp 4 --dp-size 2 --load-balance-method total_requests")
    assert (data_parallel.plan.replicas, data_parallel.plan.balancer) == (2, "least-loaded")


def test_attention_by_request_is_not_replicas() -> None:
    for flags in ("--dp 4 --enable-dp-attention", "--attn-dp-size 4", "--attn-dp-size 4 --enable-dp-attention"):
        (server,) = imported(f"sglang serve kimi-k2.6 --tp 4 {flags}")
        assert (server.plan.dp_attention, server.plan.replicas) == (True, 1)
    (partly,) = imported("sglang serve kimi-k2.6 --tp 4 --dp 2 --enable-dp-attention")
    assert (partly.plan.dp_attention, len(partly.unsupported)) == (False, 1)


def test_what_changes_the_answer_is_told_from_what_does_not() -> None:
    (server,) = imported(
        "vllm serve kimi-k2.6 --port 1 --enable-prefix-caching --enable-lora --quantization fp8 --frobnicate 3 -O0"
    )
    assert server.ignored == ("--port", "--enable-prefix-caching")
    assert [entry.flag for entry in server.unsupported] == ["--enable-lora", "--quantization", "--frobnicate"]
    assert server.settings.cuda_graph is False


def test_a_requantised_model_is_a_model_of_its_own() -> None:
    for path in ("moonshotai/Kimi-K2.6", "MOONSHOTAI/kimi-k2.6", "/data/Kimi-K2.6/", "kimi_k2.6"):
        found = matching_profile(path)
        assert found is not None
        assert found[0] == "kimi-k2.6"
    for path in ("nvidia/Kimi-K2.6-NVFP4", "Kimi-K2.6-FP8", "Kimi-K2", "/data/"):
        assert matching_profile(path) is None


def test_no_secret_is_repeated(run_cli: RunCli) -> None:
    ran = run_cli("import", "launch", "HF_TOKEN=hush1 vllm serve kimi-k2.6 --api-key hush2 --hf-token hush3", "--json")
    assert "hush" not in ran.out + ran.err


@pytest.mark.parametrize("engine", DIALECTS)
def test_predict_shows_the_command_and_takes_the_engines_variable(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    load = ("--concurrency", 4, "--num-prompts", 4, "--output-len", 4, "--seeds", 1, "--engine", engine)
    variable = DIALECTS[engine].partition_variable
    monkeypatch.setenv(variable, "16,15,15,15")
    ran = run_cli("predict", "--tp", 2, "--pp", 4, *load, "--json", "--launch")
    assert ran.json["deployment"]["layer_partition"] == [16, 15, 15, 15]
    (server,) = imported(ran.json["launch"])
    assert server.plan == ParallelPlan(2, 4, (16, 15, 15, 15))
    screen = run_cli("predict", "--tp", 2, "--pp", 4, *load, "--launch").out
    assert f"layers 16,15,15,15 by {variable}" in " ".join(screen.split())
    assert imported("\n".join(screen.splitlines()[-4:]))[0].flags == server.flags
    flag = run_cli("predict", "--tp", 2, "--pp", 4, *load, "--json", "--layer-partition", "15,15,15,16")
    assert flag.json["deployment"]["layer_partition"] == [15, 15, 15, 16]
    monkeypatch.setenv(variable, "30,31")
    refused = run_cli("predict", "--tp", 2, "--pp", 4, *load)
    assert (refused.code, variable in refused.err) == (2, True)
    assert run_cli("predict", "--tp", 8, *load).code == 0


def test_replicas_get_a_command_each(run_cli: RunCli) -> None:
    settings = EngineSettings(name="sglang")
    started = launch(settle(KIMI, BOX, ParallelPlan(2, 1, replicas=3), settings, ENGINES["sglang"]))
    gpus = [line.environment["CUDA_VISIBLE_DEVICES"] for line in started.lines]
    assert gpus == ["0,1", "2,3", "4,5"]
    assert len({one_line(line) for line in started.lines}) == 3
