"""Loads as people have them: what flags leave open is filled in as a benchmark's tool or a kind of traffic has it."""

import math
import sys
import tomllib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipesim.errors import UsageError
from pipesim.traces import Trace, read_trace
from pipesim.workload import LIMITS, Workload

DEFAULT_USERS, WAVES = 32, 6
"""Users of a closed loop, and requests of each, where they are not given: one wave goes before the steady part, and
one ends after it."""

Like = Literal["sglang-bench", "vllm-bench", "chat", "agent", "batch"]


@dataclass(frozen=True)
class Preset:
    """What a load is where its flags do not say."""

    words: str = ""
    """What the load is like; nothing for the default."""
    input_len: int = 512
    output_len: int = 256
    range_ratio: float = 0.5
    """In the tool's own meaning."""
    ratio_below: bool = False
    """Whether lengths are drawn from [r·L, L], so that 1 is fixed; from [L(1−r), L(1+r)] otherwise."""
    largest_ratio: float = 1.0
    log_spread: float = 0.0
    num_prompts: int | None = None
    """None for some waves of a closed loop whose steady part is measured."""
    ignore_eos: bool = True
    max_new_tokens: int = 0
    cached: float = 0.0
    """Share of every prompt that is in the KV cache already."""
    all_at_once: bool = False


PRESETS: dict[str | None, Preset] = {None: Preset()} | {
    like: Preset(**table)
    for like, table in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}
"""By the value of `--like`; what each rests on stands beside it."""


def load_of(  # noqa: PLR0913 - what flags say of a load
    given: Collection[str],
    like: Like | None,
    file: Path | None,
    prefix_cache: bool,
    *,
    concurrency: int | None,
    num_prompts: int | None,
    input_len: int | None,
    output_len: int | None,
    random_range_ratio: float | None,
    ignore_eos: bool | None,
    steady: bool | None,
    **load: Any,
) -> Workload:
    """Returns the load that flags ask for: of a trace file, or drawn as a preset has it.

    Args:
        given: names of the flags that a person gave.
        like: the preset; None for the default.
        file: a trace.
        prefix_cache: whether blocks seen before in the trace are cached.
        concurrency: users of a closed loop, or most requests in the server of an open one.
        num_prompts: requests in all.
        input_len: mean prompt tokens (SGLang's tool: the most), or None.
        output_len: the same of answers.
        random_range_ratio: spread of lengths in the preset's meaning, or None.
        ignore_eos: whether lengths are fixed by the client, or None.
        steady: whether the steady part alone is measured, or None.
        load: the other fields of `Workload`.

    Raises:
        UsageError: for flags that contradict each other or the preset.
    """
    if file is not None:
        _check_trace_flags(given, like, load, prefix_cache, random_range_ratio)
        load |= {"max_concurrency": concurrency, "steady": bool(steady), "ignore_eos": bool(ignore_eos)}
        trace = _trace(file, num_prompts, load["duration_s"], prefix_cache)
        load["input_len"], load["output_len"], _ = trace.mean_lengths
        return Workload(concurrency=concurrency or DEFAULT_USERS, num_prompts=len(trace), trace=trace, **load)
    if prefix_cache:
        raise UsageError("--prefix-cache", prefix_cache, "it beside --trace only")
    preset = PRESETS[like]
    if preset.all_at_once:
        if "request_rate" in given:
            raise UsageError(f"--request-rate with --like {like}", load["request_rate"], "no rate: all comes at once,")
        load["request_rate"] = math.inf
    rate = load["request_rate"]
    users = DEFAULT_USERS if concurrency is None else concurrency
    if rate is not None:
        load["max_concurrency"] = concurrency
    requests = num_prompts if num_prompts is not None else _requests(preset, users, load)
    if rate == math.inf and concurrency is None:
        users = requests
    waves = num_prompts is None and preset.num_prompts is None and not load["warm_up"]
    if "prefix_cache_hit_rate" not in given:
        load["prefix_cache_hit_rate"] = preset.cached
    return Workload(
        concurrency=users,
        num_prompts=requests,
        steady=(waves and rate is None) if steady is None else steady,
        log_spread=preset.log_spread,
        ignore_eos=preset.ignore_eos if ignore_eos is None else ignore_eos,
        max_new_tokens=0 if ignore_eos else preset.max_new_tokens,
        like=preset.words,
        **_lengths(preset, like, input_len, output_len, random_range_ratio),
        **load,
    )


def _lengths(
    preset: Preset, like: Like | None, input_len: int | None, output_len: int | None, ratio: float | None
) -> dict[str, Any]:
    """Returns mean lengths and their spread around these; a tool that draws from [r·L, L] is converted."""
    means = {
        "input_len": preset.input_len if input_len is None else input_len,
        "output_len": preset.output_len if output_len is None else output_len,
    }
    if ratio is not None and preset.log_spread:
        raise UsageError(f"--random-range-ratio with --like {like}", ratio, "no ratio: lengths are lognormal there,")
    ratio = preset.range_ratio if ratio is None else ratio
    if not 0.0 <= ratio <= preset.largest_ratio:
        limit = "a number from 0 to 1" if preset.largest_ratio == 1.0 else "a number from 0 to below 1"
        raise UsageError(f"--random-range-ratio{f' with --like {like}' if like else ''}", ratio, limit)
    if not preset.ratio_below:
        return means | {"random_range_ratio": ratio}
    half = (1.0 + ratio) / 2.0
    mean = {name: max(1, round(length * half)) if length > 0 else length for name, length in means.items()}
    return mean | {"random_range_ratio": (1.0 - ratio) / (1.0 + ratio)}


def _requests(preset: Preset, users: int, load: dict[str, Any]) -> int:
    """Returns how many requests there are where nobody says."""
    rate = load["request_rate"]
    if rate is not None and 0 < rate < math.inf and load["duration_s"] is not None:
        return _most_arrivals(rate, load["duration_s"], load["burstiness"])
    return preset.num_prompts or WAVES * users


def _check_trace_flags(
    given: Collection[str], like: Like | None, load: dict[str, Any], prefix_cache: bool, ratio: float | None
) -> None:
    if like is not None:
        raise UsageError("--like", like, "no such flag beside --trace, whose requests are as they are,")
    for name in ("input_len", "output_len", "random_range_ratio", "submit_spacing"):
        if name in given:
            flag = f"--{name.replace('_', '-')}"
            shown = ratio if name == "random_range_ratio" else "a value"
            raise UsageError(flag, shown, "no such flag beside --trace, whose requests have their own,")
    if prefix_cache and load["prefix_cache_hit_rate"]:
        raise UsageError("--prefix-cache-hit-rate", load["prefix_cache_hit_rate"], "either it or --prefix-cache")


def _trace(file: Path, num_prompts: int | None, duration_s: float | None, prefix_cache: bool) -> Trace:
    low, high = LIMITS["--num-prompts"]
    if num_prompts is not None and not low <= num_prompts <= high:
        raise UsageError("--num-prompts", num_prompts, f"a whole number from {low} to {high:,}")

    def show(rows: int) -> None:
        print(f"\r\033[Kreading {file.name}: {rows:,} requests", end="", file=sys.stderr, flush=True)

    shown: Callable[[int], None] = show if sys.stderr.isatty() else lambda _: None
    trace = read_trace(file, num_prompts or high + 1, duration_s, prefix_cache, shown)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    if len(trace) > high:
        raise UsageError("--trace", str(file), f"a trace of at most {high:,} requests, or --num-prompts or --duration")
    return trace


def _most_arrivals(rate: float, duration_s: float, burstiness: float) -> int:
    """Returns a number of requests that arrivals at a rate all but never exceed in a time (ten standard deviations)."""
    low, high = LIMITS["--num-prompts"]
    mean, index_of_dispersion = rate * duration_s, max(1.0, 1.0 / max(burstiness, 0.001))
    most = mean + 10.0 * math.sqrt(mean * index_of_dispersion) + 10.0 * index_of_dispersion
    if mean > high:
        raise UsageError("--duration", duration_s, f"a time [s] in which at most {high:,} requests come")
    return max(low, math.ceil(min(high, most)))
