"""Bad input ends with one message and exit code 2, what the box cannot do with its reasons and exit code 1."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesim.errors import ProfileError
from pipesim.measured import Runs
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.model import ModelProfile
from pipesim.profiles.store import load_hardware, load_model, validated
from tests.conftest import ROOT, Ran, RunCli

SHIPPED = {
    "hardware": ROOT / "hardware_profiles" / "rtx-pro-6000-x8.toml",
    "model": ROOT / "model_profiles" / "kimi-k2.6.toml",
    "runs": ROOT / "measured_runs" / "founding.toml",
}


def refused(ran: Ran, *words: str) -> str:
    """Holds a run to the rule, and its message to naming some words; returns the message as one line."""
    message = " ".join(re.sub(r"\x1b\[[0-9;]*m|[╭╮╰╯─│]", " ", ran.err).split())
    assert ran.code == 2
    assert ran.out == ""
    assert "Traceback" not in message
    for word in words:
        assert word in message
    return message


def edited(folder: Path, kind: str, old: str | re.Pattern[str], new: str) -> Path:
    """Writes a copy of a shipped file with one place changed: a text, or what a pattern matches."""
    text = SHIPPED[kind].read_text(encoding="utf-8")
    changed = old.sub(new, text, count=1) if isinstance(old, re.Pattern) else text.replace(old, new, 1)
    assert changed != text
    path = folder / f"{kind}.toml"
    path.write_text(changed, encoding="utf-8")
    return path


def value_of(table: str, key: str) -> re.Pattern[str]:
    """The value of a key in a table of a file, whatever it is."""
    return re.compile(rf"(?<=\n)({re.escape(table)}\n(?:[\w#].*\n)*?{key} = )(?:\"[^\"]*\"|[^\s#]+)")


GEMM_COMPUTE = value_of("[efficiency.gemm_bf16]", "compute")
HOST_MESSAGE = value_of("[host]", "message")


def use(run_cli: RunCli, kind: str, path: object) -> Ran:
    """Hands a file of one kind to the command that reads it."""
    if kind == "runs":
        return run_cli("validate", "--seeds", 1, path)
    return run_cli("predict", "--tp", 8, "--seeds", 1, f"--{kind}", path)


# --- keys and values of a file


@pytest.mark.parametrize(
    ("kind", "line", "key"),
    [
        ("hardware", "gpus = 8\n", "gpus"),
        ("hardware", "multiprocessors = 188\n", "gpu.multiprocessors"),
        ("hardware", "small_kernel = ", "host.small_kernel"),
        ("model", "layers = 61\n", "layers"),
        ("model", "top_k = 8\n", "moe.top_k"),
        ("runs", 'role = "calibration" # with', "run.0.role"),
    ],
)
def test_a_missing_key_is_named(run_cli: RunCli, tmp_path: Path, kind: str, line: str, key: str) -> None:
    path = edited(tmp_path, kind, line, "" if line.endswith("\n") else "# ")
    refused(use(run_cli, kind, path), f"{path}: {key}: nothing was given, this key is wanted")


@pytest.mark.parametrize(
    ("kind", "line", "key", "known"),
    [
        ("hardware", "gpus = 8\n", "colour", "topology"),
        ("hardware", "multiprocessors = 188\n", "gpu.colour", "memory_bandwidth"),
        ("hardware", "[efficiency.gemm_bf16]\n", "efficiency.gemm_bf16.colour", "weight_reread"),
        ("hardware", 'implementation = "nccl"\n', "collectives.0.colour", "lines"),
        ("model", "layers = 61\n", "colour", "hidden_size"),
        ("model", "top_k = 8\n", "moe.colour", "routing_skew"),
        ("runs", 'id = "tp8-eager-c1"\n', "run.0.colour", "tolerance"),
    ],
)
def test_an_unknown_key_is_named_beside_the_known_ones(
    run_cli: RunCli, tmp_path: Path, kind: str, line: str, key: str, known: str
) -> None:
    path = edited(tmp_path, kind, line, line + 'colour = "red"\n')
    message = refused(use(run_cli, kind, path), f"{path}: {key}: an unknown key was given, one of ", " is wanted")
    assert known in message


@pytest.mark.parametrize(
    ("kind", "old", "new", "key", "meant"),
    [
        ("hardware", "weight_reread", "weight_rereed", ".weight_rereed", "weight_reread"),
        ("hardware", "split_token", "splittoken", ".splittoken", "split_token"),
        ("hardware", "[all_reduce_range]", "[allreduce_range]", "allreduce_range", "all_reduce_range"),
        ("model", "source = ", 'text_weights_tolerence = 0.01\nsource = "config" # ', "text_weights_tol", "tolerance"),
        ("runs", "cuda_graph", "cuda_grph", "run.0.engine.cuda_grph", "cuda_graph"),
        ("runs", "pp_max_micro_batch_size", "pp_max_microbatch_size", "engine.pp_max_microbatch_size", "pp_max_micro"),
    ],
)
def test_a_misspelt_key_is_answered_with_the_nearest(
    run_cli: RunCli, tmp_path: Path, kind: str, old: str, new: str, key: str, meant: str
) -> None:
    path = edited(tmp_path, kind, old, new)
    message = refused(use(run_cli, kind, path), str(path), key, "an unknown key was given", "did you mean ")
    assert meant in message.rpartition("did you mean ")[2]


@pytest.mark.parametrize(
    ("kind", "old", "new", "key"),
    [
        ("hardware", "memory_bandwidth = ", "memory_bandwith = ", "gpu.memory_bandwidth"),
        ("hardware", "eager_launch = ", "eager_lunch = ", "host.eager_launch"),
        ("model", "hidden_size = ", "hiden_size = ", "hidden_size"),
    ],
)
def test_a_misspelt_key_that_must_be_there_is_named_before_the_one_it_leaves_missing(
    run_cli: RunCli, tmp_path: Path, kind: str, old: str, new: str, key: str
) -> None:
    path = edited(tmp_path, kind, old, new)
    meant = f"did you mean {key.rpartition('.')[2]}?"
    refused(use(run_cli, kind, path), str(path), new.strip(" ="), meant, " was given", " is wanted", "1 more problem")


@pytest.mark.parametrize(
    ("kind", "old", "new", "key", "given_", "wanted"),
    [
        ("hardware", '"1792 GB/s"', "1792", "gpu.memory_bandwidth", "1792 without a unit", "64 GB/s"),
        ("hardware", '"1792 GB/s"', '"1792"', "gpu.memory_bandwidth", '"1792" without a unit', "64 GB/s"),
        ("hardware", HOST_MESSAGE, r"\g<1>50e-6", "host.message", "without a unit", "5 us"),
        ("model", '"942278624 B"', "942278624", "vision_tower", "942278624 without a unit", "96 GiB"),
        ("hardware", '"1792 GB/s"', '"1792 Gb/s"', "gpu.memory_bandwidth", "1792 Gb/s", "8 to a byte"),
        ("hardware", '"97887 MiB"', '"97887 Mib"', "gpu.memory", "97887 Mib", "8 to a byte"),
        ("model", '"942278624 B"', '"942278624 b"', "vision_tower", "942278624 b", "8 to a byte"),
        ("hardware", '"1792 GB/s"', '"1792 GB"', "gpu.memory_bandwidth", '"1792 GB" with the unit "B"', "64 GB/s"),
        ("hardware", HOST_MESSAGE, r'\1"50 MB"', "host.message", '"50 MB" with the unit "B"', "5 us"),
        ("hardware", '"1792 GB/s"', '"-1792 GB/s"', "gpu.memory_bandwidth", "-1792 GB/s", "64 GB/s"),
        ("hardware", '"1792 GB/s"', '"0 GB/s"', "gpu.memory_bandwidth", "0 GB/s", "greater than or equal to"),
        ("hardware", GEMM_COMPUTE, r"\g<1>84.8", "efficiency.gemm_bf16.compute", "84.8", "less than or equal"),
        ("hardware", GEMM_COMPUTE, r"\g<1>0", "efficiency.gemm_bf16.compute", "0", "greater than or equal to"),
        ("hardware", "gpus = 8\n", "gpus = 8.5\n", "gpus", "8.5", "integer"),
        ("model", "layers = 61", "layers = 0", "layers", "0", "greater than or equal to 1"),
        ("model", "top_k = 8", "top_k = 800", "moe", "top_k is 800", "at most the 384 experts"),
        ("model", "dense_layers_first = 1", "dense_layers_first = 62", "moe.dense_layers_first", "62", "61 layers"),
        ("model", 'attention = "bf16"', 'attention = "bf17"', "precision.attention", "bf17", "'bf16', 'fp8'"),
    ],
)
def test_a_wrong_value_is_refused_with_file_key_given_and_wanted(
    run_cli: RunCli,
    tmp_path: Path,
    kind: str,
    old: str | re.Pattern[str],
    new: str,
    key: str,
    given_: str,
    wanted: str,
) -> None:
    path = edited(tmp_path, kind, old, new)
    refused(use(run_cli, kind, path), f"{path}: {key}", given_, " was given", wanted, " is wanted")


@pytest.mark.parametrize(
    ("kind", "old", "new", "key"),
    [
        ("hardware", value_of("[gpu]", "source"), r'\1"gem"', "gpu.source"),
        ("hardware", value_of("[efficiency.gemm_bf16]", "source"), r'\1"gem"', "efficiency.gemm_bf16.source"),
        ("hardware", value_of("[[collectives]]", "source"), r'\1"gem"', "collectives[0].source"),
        ("hardware", value_of("[all_reduce_range]", "source"), r'\1"gem"', "all_reduce_range.source"),
        ("hardware", "[sources.host]", "[sources.gem]", "host.source"),
        ("model", 'source = "config"', 'source = "gem"', "source"),
        ("model", 'routing_source = "routing"', 'routing_source = "gem"', "moe.routing_source"),
    ],
)
def test_a_constant_must_name_a_source_of_its_file(
    run_cli: RunCli, tmp_path: Path, kind: str, old: str | re.Pattern[str], new: str, key: str
) -> None:
    path = edited(tmp_path, kind, old, new)
    name = "host" if key == "host.source" else "gem"
    refused(use(run_cli, kind, path), f'{path}: {key} names "{name}" was given, one of [', "is wanted")


@pytest.mark.parametrize(
    ("groups", "given_"),
    [
        ("[[0, 1, 2, 3], [4, 5, 6]]", "0, 1, 2, 3, 4, 5, 6]"),
        ("[[0, 1, 2, 3], [4, 5, 6, 6]]", "5, 6, 6]"),
        ("[[0, 1, 2, 3], [4, 5, 6, 7, 8]]", "6, 7, 8]"),
        ("[]", "[]"),
    ],
)
def test_a_topology_holds_every_gpu_once(run_cli: RunCli, tmp_path: Path, groups: str, given_: str) -> None:
    path = edited(tmp_path, "hardware", "[[0, 1, 2, 3], [4, 5, 6, 7]]", groups)
    refused(use(run_cli, "hardware", path), f"{path}: topology.groups", given_, "each of 0 to 7 once is wanted")


def test_an_efficiency_computes_with_a_rate_of_the_gpu(run_cli: RunCli, tmp_path: Path) -> None:
    path = edited(tmp_path, "hardware", "[efficiency.gemm_bf16]\n", '[efficiency.gemm_bf16]\nrate = "int3"\n')
    refused(
        use(run_cli, "hardware", path),
        f'{path}: efficiency.gemm_bf16.rate is "int3"',
        "['bf16', 'fp4', 'fp8'] is wanted",
    )


def test_an_architecture_without_a_family_is_refused_with_the_known_ones(run_cli: RunCli, tmp_path: Path) -> None:
    path = edited(tmp_path, "model", "DeepseekV3ForCausalLM", "BertModel")
    refused(use(run_cli, "model", path), "architecture", '"BertModel" was given', "DeepseekV3ForCausalLM,")


@pytest.mark.parametrize(("old", "new"), [("layers = 61", "layers = 60"), ("594205351936 B", "700 GB")])
def test_shapes_that_do_not_add_up_to_the_published_weights_are_refused(
    run_cli: RunCli, tmp_path: Path, old: str, new: str
) -> None:
    refused(use(run_cli, "model", edited(tmp_path, "model", old, new)), "text_weights", " GB was given", "is wanted")


@pytest.mark.parametrize(
    ("base", "given_", "wanted"),
    [
        ('"rtx-pro-600"', "'rtx-pro-600' was given", "the name of a hardware profile: "),
        ("8", "8 was given", "the name of a hardware profile: "),
        ('"kimi-k2.6"', "'kimi-k2.6' was given", "the name of a hardware profile: "),
        ('"own"', "'own' was given", "the name of a hardware profile: "),
    ],
)
def test_a_profile_extends_a_hardware_profile(
    run_cli: RunCli, tmp_path: Path, base: str, given_: str, wanted: str
) -> None:
    path = tmp_path / "own.toml"
    path.write_text(f'schema_version = 1\nextends = {base}\nname = "own"\n', encoding="utf-8")
    refused(use(run_cli, "hardware", path), f"{path}: extends: ", given_, wanted)


# --- files that are none


@pytest.mark.parametrize("kind", SHIPPED)
@pytest.mark.parametrize(
    ("content", "given_"),
    [
        (b"", "schema_version: nothing was given, 1 is wanted"),
        (b"\x7fELF\x02\x01\x01\x00\xff\xfe", "a binary file (byte 8 is not text) was given, a TOML file in UTF-8"),
        (bytes(range(32)), "broken or cut-off TOML"),
        (b'{"schema_version": 1}', "broken or cut-off TOML"),
        (b"schema_version = 1\nname = ", "broken or cut-off TOML: Invalid value (at end of document) was given"),
        (b"#" * 4_000_001, "4,000,001 bytes was given, a TOML file of at most 4,000,000 bytes is wanted"),
    ],
    ids=["empty", "binary", "control characters", "JSON", "cut off", "huge"],
)
def test_a_file_that_is_no_profile_is_refused(
    run_cli: RunCli, tmp_path: Path, kind: str, content: bytes, given_: str
) -> None:
    path = tmp_path / "file.toml"
    path.write_bytes(content)
    refused(use(run_cli, kind, path), f"{path}: {given_}", "is wanted")


@pytest.mark.parametrize("kind", SHIPPED)
def test_half_a_file_is_refused(run_cli: RunCli, tmp_path: Path, kind: str) -> None:
    whole = SHIPPED[kind].read_bytes()
    path = tmp_path / "half.toml"
    path.write_bytes(whole[: whole.index(b"\n[") + len("\n[")])
    refused(use(run_cli, kind, path), f"{path}: broken or cut-off TOML", "was given, a complete TOML file is wanted")


@pytest.mark.parametrize("kind", SHIPPED)
def test_a_file_of_a_later_schema_asks_for_an_update(run_cli: RunCli, tmp_path: Path, kind: str) -> None:
    path = edited(tmp_path, kind, "schema_version = 1", "schema_version = 2")
    refused(use(run_cli, kind, path), f"{path}: schema_version: 2 was given, 1 is wanted", "update pipesim")


@pytest.mark.parametrize("kind", SHIPPED)
@pytest.mark.parametrize("version", ["", "schema_version = 0\n", 'schema_version = "1"\n'])
def test_a_file_says_which_schema_it_follows(run_cli: RunCli, tmp_path: Path, kind: str, version: str) -> None:
    path = edited(tmp_path, kind, "schema_version = 1\n", version)
    refused(use(run_cli, kind, path), f"{path}: schema_version: ", " was given, 1 is wanted")


@pytest.mark.parametrize("kind", SHIPPED)
def test_a_file_that_is_not_there_is_refused(run_cli: RunCli, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "nowhere.toml"
    refused(use(run_cli, kind, path), f"{path}: no such file was given", "in TOML is wanted")


@pytest.mark.parametrize("kind", SHIPPED)
@pytest.mark.parametrize("name", ["folder", "folder.toml"])
def test_a_directory_is_no_file(run_cli: RunCli, tmp_path: Path, kind: str, name: str) -> None:
    path = tmp_path / name
    path.mkdir()
    refused(use(run_cli, kind, path), f"{path}: ", " was given", "in TOML is wanted")


@pytest.mark.parametrize(("kind", "other"), [("hardware", "model"), ("model", "hardware"), ("runs", "hardware")])
def test_a_file_of_another_kind_is_refused(run_cli: RunCli, kind: str, other: str) -> None:
    refused(
        use(run_cli, kind, SHIPPED[other]),
        f"{SHIPPED[other]}: ",
        "nothing was given, this key is wanted",
        "more problem",
    )


@pytest.mark.parametrize(
    ("flag", "name", "near"),
    [
        ("--hardware", "rtx-pro-6001-x8", "rtx-pro-6000-x8"),
        ("--hardware", "rtx-pto-6000-x8", "rtx-pro-6000-x8"),
        ("--model", "kimi-k26", "kimi-k2.6"),
        ("--model", "gpt-oss-120", "gpt-oss-120b"),
    ],
)
def test_an_unknown_profile_name_is_answered_with_the_nearest(run_cli: RunCli, flag: str, name: str, near: str) -> None:
    refused(run_cli("predict", flag, name), f'{flag}: "{name}" was given', f"did you mean {near}?")


@pytest.mark.parametrize(("flag", "known"), [("--hardware", "rtx-pro-6000-x8"), ("--model", "kimi-k2.6")])
def test_a_far_off_profile_name_is_answered_with_all_names(run_cli: RunCli, flag: str, known: str) -> None:
    refused(run_cli("predict", flag, "zzz"), f'{flag}: "zzz" was given', known, "is wanted", "pipesim profiles list")


def test_showing_an_unknown_profile_is_answered_with_all_names(run_cli: RunCli) -> None:
    refused(run_cli("profiles", "show", "zzz"), "'zzz' was given", "kimi-k2.6, ", "rtx-pro-6000-x8, ")


# --- properties of the readers

SCHEMAS: dict[str, type[HardwareProfile] | type[ModelProfile] | type[Runs]] = {
    "hardware": HardwareProfile,
    "model": ModelProfile,
    "runs": Runs,
}
DOCUMENTS = {kind: tomllib.loads(path.read_text(encoding="utf-8")) for kind, path in SHIPPED.items()}
readers = st.sampled_from([("hardware", load_hardware), ("model", load_model)])


@given(data=st.data(), reader=readers)
def test_a_profile_cut_off_anywhere_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, reader: tuple[str, Any]
) -> None:
    kind, load = reader
    whole = SHIPPED[kind].read_bytes()
    path = tmp_path_factory.getbasetemp() / "cut.toml"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 2))])
    with pytest.raises(ProfileError, match=r"cut\.toml: "):
        load(str(path))


@given(st.binary(max_size=200), readers)
def test_any_bytes_are_refused_as_a_profile_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, reader: tuple[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage.toml"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=r"garbage\.toml: "):
        reader[1](str(path))


def places(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place of a document at which a value stands."""
    if path:
        yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def replaced(node: Any, path: tuple[str | int, ...], value: object) -> Any:
    """A copy of a document with another value at one place."""
    if not path:
        return value
    copy: Any = node.copy()
    copy[path[0]] = replaced(node[path[0]], path[1:], value)
    return copy


numbers = st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6) | st.sampled_from([float("nan"), float("inf")])
scalars = st.none() | st.booleans() | numbers | st.text(max_size=8)
anything = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(max_size=8), scalars, max_size=3)


@settings(max_examples=300)
@given(st.data(), st.sampled_from(["hardware", "model"]), anything)
def test_any_value_at_any_place_of_a_profile_is_accepted_or_a_profile_error(
    data: st.DataObject, kind: str, value: object
) -> None:
    place = data.draw(st.sampled_from(list(places(DOCUMENTS[kind]))))
    try:
        validated(SCHEMAS[kind], replaced(DOCUMENTS[kind], place, value), Path("profile.toml"))
    except ProfileError as refusal:
        assert str(refusal).startswith("profile.toml: ")
        assert " is wanted" in str(refusal)


# --- flags


@pytest.mark.parametrize(
    ("arguments", "given_", "wanted"),
    [
        ("--tp 3", "3", "a number that divides the 64 attention heads of kimi-k2.6"),
        ("--tp 128", "128", "a number that divides the 64 attention heads of kimi-k2.6"),
        ("--tp 0", "0", "a whole number from 1 to 4096"),
        ("--tp -8", "-8", "a whole number from 1 to 4096"),
        ("--tp 99999", "99999", "a whole number from 1 to 4096"),
        ("--pp 62", "62", "at most one stage for each of the 61 layers of kimi-k2.6"),
        ("--pp 0", "0", "a whole number from 1 to 4096"),
        ("--pp -1", "-1", "a whole number from 1 to 4096"),
        (
            "--layer-partition 15,15,15,15 --tp 2 --pp 4",
            "15,15,15,15",
            "4 positive numbers that add up to the 61 layers",
        ),
        ("--layer-partition 30,31 --tp 2 --pp 4", "30,31", "4 positive numbers that add up to the 61 layers"),
        ("--layer-partition 61 --tp 4 --pp 2", "61", "2 positive numbers that add up to the 61 layers"),
        ("--layer-partition 0,20,20,21 --tp 2 --pp 4", "0,20,20,21", "4 positive numbers that add up to the 61"),
        ("--layer-partition -1,20,21,21 --tp 2 --pp 4", "-1,20,21,21", "4 positive numbers that add up to the 61"),
        ("--layer-partition a,b --tp 4 --pp 2", "a,b", "whole numbers with commas"),
        ("--layer-partition 30.5,30.5 --tp 4 --pp 2", "30.5,30.5", "whole numbers with commas"),
        ("--layer-partition 30;31 --tp 4 --pp 2", "30;31", "whole numbers with commas"),
        ("--layer-partition 30,31, --tp 4 --pp 2", "30,31,", "whole numbers with commas"),
        ("--concurrency 0", "0", "a whole number from 1 to 100,000"),
        ("--concurrency -4", "-4", "a whole number from 1 to 100,000"),
        ("--concurrency 1000000000", "1000000000", "a whole number from 1 to 100,000"),
        ("--num-prompts 0", "0", "a whole number from 1 to 1,000,000"),
        ("--num-prompts -1", "-1", "a whole number from 1 to 1,000,000"),
        ("--num-prompts 1000000000", "1000000000", "a whole number from 1 to 1,000,000"),
        ("--input-len 0", "0", "a whole number from 1 to 10,000,000"),
        ("--input-len -1", "-1", "a whole number from 1 to 10,000,000"),
        ("--input-len 1000000000", "1000000000", "a whole number from 1 to 10,000,000"),
        ("--output-len 0", "0", "a whole number from 1 to 1,000,000"),
        ("--output-len -1", "-1", "a whole number from 1 to 1,000,000"),
        ("--output-len 1000000000", "1000000000", "a whole number from 1 to 1,000,000"),
        ("--context-len -1", "-1", "a whole number from 0 to 10,000,000"),
        ("--random-range-ratio -0.1", "-0.1", "a number from 0 to 1"),
        ("--random-range-ratio 1.1", "1.1", "a number from 0 to 1"),
        ("--random-range-ratio nan", "nan", "a number from 0 to 1"),
        ("--request-rate nan", "nan", "requests per second above 0"),
        ("--request-rate -inf", "-inf", "requests per second above 0"),
        ("--request-rate 0", "0.0", "requests per second above 0"),
        ("--request-rate -1", "-1.0", "requests per second above 0"),
        ("--submit-spacing 5", '"5" without a unit', 'a quantity in s such as "5 us" is wanted'),
        ("--submit-spacing 5MB", '"5MB" with the unit "B"', 'a quantity in s such as "5 us" is wanted'),
        ("--submit-spacing -1ms", '"-1ms"', 'a quantity in s such as "5 us" is wanted'),
        ("--submit-spacing 2e9s", "2000000000.0", "a time from 0 s to 3600 s"),
        ("--mem-fraction-static 0", "0.0", "a number between 0 and 1"),
        ("--mem-fraction-static 1", "1.0", "a number between 0 and 1"),
        ("--mem-fraction-static 1.5", "1.5", "a number between 0 and 1"),
        ("--mem-fraction-static -0.5", "-0.5", "a number between 0 and 1"),
        ("--mem-fraction-static nan", "nan", "a number between 0 and 1"),
        ("--gpu-memory-utilization 0", "0.0", "a number above 0 and at most 1"),
        ("--gpu-memory-utilization 1.5", "1.5", "a number above 0 and at most 1"),
        ("--gpu-memory-utilization nan", "nan", "a number above 0 and at most 1"),
        ("--chunked-prefill-size 0", "0", "a whole number from 16 to 10,000,000"),
        ("--chunked-prefill-size -1", "-1", "a whole number from 16 to 10,000,000"),
        ("--pp-max-micro-batch-size 0", "0", "a whole number from 1 to 1,000,000"),
        ("--pp-max-micro-batch-size -1", "-1", "a whole number from 1 to 1,000,000"),
        ("--pp-async-batch-depth -1", "-1", "a whole number from 0 to 64"),
        ("--max-running-requests 0", "0", "a whole number from 1 to 1,000,000"),
    ],
)
def test_a_flag_out_of_range_is_refused_with_what_was_given_and_what_is_wanted(
    run_cli: RunCli, arguments: str, given_: str, wanted: str
) -> None:
    words = arguments.split()
    split = [] if "--tp" in words or "--pp" in words else ["--tp", "8"]
    refused(run_cli("predict", *split, *words), f"error: {words[0]}: ", given_, wanted)


INTEGER_FLAGS = [
    "--tp",
    "--pp",
    "--concurrency",
    "--num-prompts",
    "--input-len",
    "--output-len",
    "--context-len",
    "--pp-max-micro-batch-size",
    "--pp-async-batch-depth",
    "--max-running-requests",
    "--chunked-prefill-size",
    "--seed",
    "--seeds",
]


@pytest.mark.parametrize("value", ["two", "2.5"])
@pytest.mark.parametrize("flag", INTEGER_FLAGS)
def test_a_flag_that_counts_takes_whole_numbers_only(run_cli: RunCli, flag: str, value: str) -> None:
    refused(run_cli("predict", flag, value), f"'{flag}'", "valid integer")


@pytest.mark.parametrize(
    "flag", ["--request-rate", "--random-range-ratio", "--mem-fraction-static", "--gpu-memory-utilization"]
)
def test_a_flag_that_measures_takes_numbers_only(run_cli: RunCli, flag: str) -> None:
    refused(run_cli("predict", flag, "half"), f"'{flag}'", "valid number")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["predict", "--tensor-parallel", "8"], "--tensor-parallel"),
        (["predict", "--micro-batches", "8"], "--micro-batches"),
        (["validate", "--hardware", "rtx-pro-6000-x8"], "--hardware"),
        (["--version-of-everything"], "--version-of-everything"),
    ],
)
def test_an_unknown_flag_is_named(run_cli: RunCli, arguments: list[str], named: str) -> None:
    refused(run_cli(*arguments), f"No such option: {named}")


def test_a_misspelt_flag_is_answered_with_the_nearest(run_cli: RunCli) -> None:
    refused(run_cli("predict", "--concurency", 4), "No such option: --concurency", "--concurrency")


@pytest.mark.parametrize(
    ("flag", "value", "known"),
    [("--engine", "tgi", "sglang"), ("--kv-cache-dtype", "int3", "fp8"), ("--detail", "kernel", "stage")],
)
def test_a_choice_is_one_of_the_known(run_cli: RunCli, flag: str, value: str, known: str) -> None:
    refused(run_cli("predict", flag, value), flag, f"'{value}'", known)


@pytest.mark.parametrize("arguments", [["predict", "TP8"], ["forecast"], ["predict", "--tp"]])
def test_a_word_too_many_or_too_few_is_refused(run_cli: RunCli, arguments: list[str]) -> None:
    assert arguments[-1] in refused(run_cli(*arguments))


# --- files of measured runs

RUN_8 = "measured = { output_tokens_per_s = 136.6 }"


@pytest.mark.parametrize(
    ("old", "new", "key", "given_", "wanted"),
    [
        (
            RUN_8,
            "measured = { tokens_per_s = 136.6 }",
            "run.1",
            "measured.tokens_per_s is no metric",
            "output_tokens_per_s",
        ),
        (RUN_8, "measured = { output_tokens_per_s = -1 }", "run.1", "is -1.0", "a finite number above 0"),
        (RUN_8, "measured = { output_tokens_per_s = nan }", "run.1", "is nan", "a finite number above 0"),
        ("tolerance = ", "# ", "run.0", "tolerance.output_tokens_per_s is nothing", "the tolerance of measured.output"),
        ("{ output_tokens_per_s = 0.12 }", "{ ttft_s = 0.12 }", "run.0", "is nothing", "the tolerance of measured"),
        ('id = "tp8-eager-c8"', 'id = "tp8-eager-c1"', 'run.id "tp8-eager-c1"', "stands 2 times", "each id once"),
        ('role = "validation"', 'role = "validated"', "run.1.role", "'validated'", "'validation', 'calibration' or"),
        ("concurrency = 8", "concurrency = 0", "run.1.workload.concurrency", "0", "greater than or equal to 1"),
        ("tp = 8", "tp = 0", "run.0.plan.tp", "0", "greater than or equal to 1"),
        ("[[run]]", "[[runs]]", "runs", "an unknown key", "did you mean run?"),
    ],
)
def test_a_measured_run_is_refused_with_file_key_given_and_wanted(
    run_cli: RunCli, tmp_path: Path, old: str, new: str, key: str, given_: str, wanted: str
) -> None:
    path = edited(tmp_path, "runs", old, new)
    refused(use(run_cli, "runs", path), f"{path}: {key}", given_, " was given", wanted)


@pytest.mark.parametrize("text", ["schema_version = 1\n", "schema_version = 1\nrun = []\n"])
def test_a_file_without_any_run_is_refused(run_cli: RunCli, tmp_path: Path, text: str) -> None:
    path = tmp_path / "none.toml"
    path.write_text(text, encoding="utf-8")
    refused(use(run_cli, "runs", path), f"{path}: run: ", " was given", " is wanted")


# --- what the box cannot do


def test_stages_too_heavy_for_their_gpus_are_an_answer_with_gpu_memory_and_what_would_fit(run_cli: RunCli) -> None:
    ran = run_cli("predict", "--tp", 1, "--pp", 4, "--json")
    assert ran.code == 1
    assert ran.err == ""
    assert set(ran.json) == {"schema_version", "feasible", "reasons"}
    assert (ran.json["schema_version"], ran.json["feasible"]) == (1, False)
    short, fits = ran.json["reasons"]
    assert re.match(r"GPU 3 \(stage 3\) lacks \d+\.\d GiB: it would hold 148\.3 GiB of weights", short)
    assert "in 95.6 GiB" in short
    assert fits == "On rtx-pro-6000-x8 these would fit: PP8, TP2×PP4, TP4×PP2, TP8."


def test_what_is_said_to_fit_fits_and_what_is_left_out_does_not(run_cli: RunCli) -> None:
    reasons = run_cli("predict", "--tp", 1, "--pp", 4, "--json").json["reasons"]
    for tp, pp in ((1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 4), (8, 1), (4, 2), (2, 4), (1, 8)):
        name = "×".join([f"TP{tp}"] * (tp > 1) + [f"PP{pp}"] * (pp > 1))
        said = re.search(rf"(: |, ){name}[,.]", reasons[-1]) is not None if name else False
        ran = run_cli("predict", "--tp", tp, "--pp", pp, "--seeds", 1, "--concurrency", 1, "--output-len", 2, "--json")
        assert ran.code == (0 if said else 1)


def test_more_gpus_than_the_box_has_are_an_answer_with_how_many_would_fit(run_cli: RunCli) -> None:
    ran = run_cli("predict", "--tp", 4, "--pp", 4, "--json")
    assert (ran.code, ran.err) == (1, "")
    (reason,) = ran.json["reasons"]
    assert "TP4×PP4 takes 16 GPUs; rtx-pro-6000-x8 has 8." in reason
    assert "of at most 8 would fit" in reason
    assert ran.json == {"schema_version": 1, "feasible": False, "reasons": [reason]}


def test_a_context_longer_than_the_kv_cache_is_an_answer_with_the_room_there_is(run_cli: RunCli) -> None:
    load = ["--context-len", 260_000, "--input-len", 512, "--output-len", 256, "--seeds", 1]
    ran = run_cli("predict", "--tp", 8, *load, "--json")
    assert (ran.code, ran.err) == (1, "")
    (reason, *_) = ran.json["reasons"]
    assert "260,768 tokens of KV cache" in reason
    room = int(re.findall(r"room for ([\d,]+)", reason)[0].replace(",", ""))
    assert ran.json["feasible"] is False
    fitting = run_cli("predict", "--tp", 8, "--context-len", room - 768, *load[2:], "--num-prompts", 1, "--json")
    assert fitting.code == 0


def test_an_infeasible_split_is_told_to_a_person_on_stdout(run_cli: RunCli) -> None:
    ran = run_cli("predict", "--tp", 1, "--pp", 4)
    assert (ran.code, ran.err) == (1, "")
    first, *reasons = ran.out.splitlines()
    assert first == "PP4 does not fit."
    assert max(map(len, reasons)) <= 80
    assert " ".join(reasons) == " ".join(run_cli("predict", "--tp", 1, "--pp", 4, "--json").json["reasons"])


def test_a_smaller_share_of_memory_than_the_weights_take_is_infeasible(run_cli: RunCli) -> None:
    ran = run_cli("predict", "--tp", 8, "--mem-fraction-static", 0.5, "--json")
    assert ran.code == 1
    assert re.match(r"GPU 0 \(stage 0\) lacks \d+\.\d GiB", ran.json["reasons"][0])
    assert ran.json["reasons"][1] == "No TP×PP split of the 8 GPUs of rtx-pro-6000-x8 holds it."


def test_a_model_may_be_named_by_its_hugging_face_id(run_cli: RunCli) -> None:
    for name in ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct"):
        ran = run_cli("predict", "--model", name, "--tp", 1, "--concurrency", 1, "--output-len", 2, "--json")
        assert ran.json["deployment"]["model"] == "llama-3.1-8b"
    ran = run_cli("predict", "--model", "meta-llama/Llama-9")
    assert (ran.code, "import hf-config" in ran.err) == (2, True)


def test_the_kv_cache_is_named_in_the_engines_words_too(run_cli: RunCli) -> None:
    load = ("predict", "--tp", 8, "--concurrency", 1, "--output-len", 2, "--json", "--kv-cache-dtype")
    assert run_cli(*load, "fp8_e4m3").json["metrics"] == run_cli(*load, "fp8").json["metrics"]
    assert run_cli(*load, "fp4").code == 2


def test_a_load_beyond_the_models_positions_is_noted(run_cli: RunCli) -> None:
    load = ("predict", "--model", "llama-3.1-8b", "--hardware", "h200-sxm-x1", "--concurrency", 1, "--num-prompts", 1)
    inside, beyond = (run_cli(*load, "--output-len", 2, "--json", "--input-len", n).json for n in (100_000, 200_000))
    assert [any("positions" in note for note in answer["notes"]) for answer in (inside, beyond)] == [False, True]
