"""A flag is described once: whichever way a person sets it, it is the same question."""

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin

import pytest
import typer

from pipesim.asking import ask_openly, asks, kinds_of
from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.errors import UsageError
from pipesim.flags import Option, flag, made, options_of, words_of
from pipesim.keywords import checked, context_of
from pipesim.measured import RunEngine, RunPlan, table_of
from pipesim.options import Question

EVERY = [*options_of(ParallelPlan), *options_of(EngineSettings)]
BESIDE: dict[str, dict[str, Any]] = {
    **{name: {"tp": 2} for name in ("ep", "dcp", "dp_attention")},
    "dynamic_chunking_smooth_factor": {"enable_dynamic_chunking": True},
}
"""What a flag needs beside it."""
SAMPLES = {"engine_version": "0.5.22", "kv_cache_dtype": "fp8"}


def other_than_default(option: Option) -> Any:
    """Returns a value that a person may write for an option, and that is not its default."""
    kind = kinds_of(option.kind)[0]
    if option.name in SAMPLES:
        return SAMPLES[option.name]
    if option.said.example:
        return option.said.example
    if kind is bool:
        return not option.default
    if get_origin(kind) is Literal:
        return get_args(kind)[-1]
    if option.said.within and kind is int:
        return int(option.said.within[0]) + 1 + (option.default == option.said.within[0] + 1)
    return 0.5


def asked(words: list[str]) -> Question:
    app, questions = typer.Typer(), list[Question]()

    @app.command()
    @asks
    def predict(asked: Question) -> None:
        questions.append(asked)

    app(words, standalone_mode=False)
    return questions[0]


@pytest.mark.parametrize("option", EVERY, ids=lambda option: option.name)
def test_a_flag_a_keyword_a_files_key_and_a_printed_command_mean_the_same(option: Option) -> None:
    given = {"engine": option.said.engine or "sglang"} | BESIDE.get(option.name, {})
    given |= {option.name: other_than_default(option)}
    by_keyword = ask_openly({"context": context_of(given), **checked(given)}, ())
    plan, settings = by_keyword.plan, by_keyword.settings
    assert getattr(plan if option in options_of(ParallelPlan) else settings, option.field) != option.unset
    by_flag = asked([*words_of(plan), *words_of(settings)])
    assert (by_flag.plan, by_flag.settings) == (plan, settings)
    assert made(ParallelPlan, given) == plan
    assert made(EngineSettings, given) == settings
    said = {field.name: getattr(part, field.name) for part in (plan, settings) for field in fields(part)}
    in_file = [table(**{name: said[name] for name in table.model_fields}) for table in (RunPlan, RunEngine)]
    assert (ParallelPlan(**vars(in_file[0])), EngineSettings(**vars(in_file[1]))) == (plan, settings)


@pytest.mark.parametrize("option", EVERY, ids=lambda option: option.name)
def test_every_spelling_of_a_flag_is_taken(option: Option) -> None:
    value = other_than_default(option)
    needed = {"engine": option.said.engine or "sglang"} | BESIDE.get(option.name, {})
    beside = [*words_of(made(ParallelPlan, needed)), *words_of(made(EngineSettings, needed))]
    answers = set()
    for spelling in option.words:
        with_it, _, without = spelling.partition("/")
        words = [with_it if value else without] if isinstance(value, bool) else [with_it, str(value)]
        question = asked(beside + words)
        answers.add((question.plan, question.settings))
    assert len(answers) == 1


def test_a_new_setting_is_one_description() -> None:
    @dataclass(frozen=True)
    class Turbo(EngineSettings):
        turbo: int = flag(1, "A setting that no engine has.", within=(1, 9), engine="sglang")

    settings = made(Turbo, {"engine": "sglang", "turbo": 3})
    assert (settings.turbo, words_of(settings)) == (3, ["--turbo", "3"])
    assert table_of(Turbo)(turbo=4).turbo == 4
    with pytest.raises(UsageError, match="--turbo: 10 was given, a whole number from 1 to 9 is wanted"):
        made(Turbo, {"engine": "sglang", "turbo": 10})
    with pytest.raises(UsageError, match="--turbo with --engine: 'vllm' was given, sglang"):
        made(Turbo, {"engine": "vllm", "turbo": 3})
