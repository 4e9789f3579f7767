"""Loads as people have them: what flags leave open is filled in as a benchmark's tool or a kind of traffic has it."""

import math
import sys
import tomllib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pipesim.errors import PipesimError, UsageError
from pipesim.flags import flag
from pipesim.traces import Trace, read_trace
from pipesim.units import parse_quantity
from pipesim.workload import LIMITS, Workload

DEFAULT_USERS, WAVES = 32, 6
"""Users of a closed loop, and requests of each, where they are not given: one wave goes before the steady part, and
one ends after it."""

PASSED_ON = ("context_len", "request_rate", "burstiness", "prefix_cache_hit_rate", "warm_up")
"""Flags that mean the fields of `Workload` of their names, whatever the preset."""

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


@dataclass(frozen=True)
class LoadFlags:
    """What a person says of a load; None where a preset is to tell."""

    concurrency: int | None = flag(
        None, "Users of the closed loop; open: most requests in server.", "--concurrency", "--max-concurrency"
    )
    request_rate: float | None = flag(None, "Open loop: arrivals per second, or inf.")
    num_prompts: int | None = flag(None, "Requests in all, all of them measured (default: --steady).")
    like: Like | None = flag(
        None, "Load with a benchmark tool's defaults and its meaning of the range ratio, or a kind of traffic."
    )
    input_len: int | None = flag(
        None, "Mean prompt tokens (default: 512).", "--input-len", "--isl", "--random-input-len"
    )
    output_len: int | None = flag(
        None, "Mean output tokens (default: 256).", "--output-len", "--osl", "--random-output-len"
    )
    random_range_ratio: float | None = flag(
        None,
        "Lengths uniform from L(1-r) to L(1+r), as vLLM's tool has it (default: 0.5); with --like sglang-bench "
        "from rL to L, where 1 is fixed.",
    )
    ignore_eos: bool | None = flag(
        None, "The client fixes answers' lengths, or they end by themselves.", "--ignore-eos/--no-ignore-eos"
    )
    steady: bool | None = flag(
        None,
        "Measure a closed loop between its opening wave and its end, or all of it (default with --num-prompts).",
        "--steady/--whole-run",
    )
    context_len: int = flag(0, "Tokens in the KV cache before the prompt.")
    submit_spacing: str | None = flag(
        None,
        "Mean gap between the users' first requests (default: 0.2 ms; with --steady over the time of a request).",
    )
    trace: Path | None = flag(None, "Open loop: a trace's arrivals and lengths, in CSV or JSON lines.")
    prefix_cache: bool = flag(False, "Prompt blocks seen before in the trace (hash_ids) are in the KV cache.")
    prefix_cache_hit_rate: float = flag(0.0, "Share of every prompt that is in the KV cache already.")
    burstiness: float = flag(1.0, "Shape of the gamma gaps between arrivals; 1 is Poisson, less is burstier.")
    duration: str | None = flag(None, 'Open loop: requests are sent until then, such as "60 s".')
    warm_up: int = flag(0, "First requests to end that the metrics leave out.")


def load_of(given: Collection[str], flags: LoadFlags) -> Workload:
    """Returns the load that flags ask for: of a trace file, or drawn as a preset has it.

    Args:
        given: names of the flags that a person gave.
        flags: their values, and the defaults of the others.

    Raises:
        UsageError: for flags that contradict each other or the preset.
    """
    like, concurrency, num_prompts = flags.like, flags.concurrency, flags.num_prompts
    load: dict[str, Any] = {name: getattr(flags, name) for name in PASSED_ON}
    load["spacing_s"] = parse_flag("--submit-spacing", flags.submit_spacing, "s")
    load["duration_s"] = parse_flag("--duration", flags.duration, "s")
    if flags.trace is not None:
        _check_trace_flags(given, flags)
        load |= {"max_concurrency": concurrency, "steady": bool(flags.steady), "ignore_eos": bool(flags.ignore_eos)}
        trace = _trace(flags.trace, num_prompts, load["duration_s"], flags.prefix_cache)
        load["input_len"], load["output_len"], _ = trace.mean_lengths
        return Workload(concurrency=concurrency or DEFAULT_USERS, num_prompts=len(trace), trace=trace, **load)
    if flags.prefix_cache:
        raise UsageError("--prefix-cache", flags.prefix_cache, "it beside --trace only")
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
        steady=(waves and rate is None) if flags.steady is None else flags.steady,
        log_spread=preset.log_spread,
        ignore_eos=preset.ignore_eos if flags.ignore_eos is None else flags.ignore_eos,
        max_new_tokens=0 if flags.ignore_eos else preset.max_new_tokens,
        like=preset.words,
        **_lengths(preset, flags),
        **load,
    )


@lru_cache(maxsize=256)
def parse_flag(name: str, given: str | None, unit: str) -> float | None:
    """Returns the SI value of a flag such as "50 ms"; None where it is not given. Raises PipesimError that names it."""
    try:
        return None if given is None else parse_quantity(given, unit)
    except ValueError as error:
        raise PipesimError(f"{name}: {error}") from None


def _lengths(preset: Preset, flags: LoadFlags) -> dict[str, Any]:
    """Returns mean lengths and their spread around these; a tool that draws from [r·L, L] is converted."""
    like, ratio = flags.like, flags.random_range_ratio
    means = {
        "input_len": preset.input_len if flags.input_len is None else flags.input_len,
        "output_len": preset.output_len if flags.output_len is None else flags.output_len,
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


def _check_trace_flags(given: Collection[str], flags: LoadFlags) -> None:
    if flags.like is not None:
        raise UsageError("--like", flags.like, "no such flag beside --trace, whose requests are as they are,")
    for name in ("input_len", "output_len", "random_range_ratio", "submit_spacing"):
        if name in given:
            spelt = f"--{name.replace('_', '-')}"
            shown = flags.random_range_ratio if name == "random_range_ratio" else "a value"
            raise UsageError(spelt, shown, "no such flag beside --trace, whose requests have their own,")
    if flags.prefix_cache and flags.prefix_cache_hit_rate:
        raise UsageError("--prefix-cache-hit-rate", flags.prefix_cache_hit_rate, "either it or --prefix-cache")


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
