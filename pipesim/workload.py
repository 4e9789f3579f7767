"""What users ask for: a closed loop or an open loop of requests, and the batches an engine makes of them."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from pipesim.errors import UsageError
from pipesim.traces import LONGEST_SPAN_S, Trace
from pipesim.units import to_picoseconds

KV_BLOCK_TOKENS = 64
"""Decode attention is priced at the mean KV length of a batch, rounded up to whole blocks of this many tokens."""

LIMITS = {
    "--concurrency": (1, 100_000),
    "--num-prompts": (1, 1_000_000),
    "--input-len": (1, 10_000_000),
    "--output-len": (1, 1_000_000),
    "--context-len": (0, 10_000_000),
    "--warm-up": (0, 1_000_000),
}


FEWEST_STEADY_WAVES = 3
"""Requests per user from which a closed loop has a part between its opening wave and its end."""
BURST_SPACING_S = 0.0002
"""Mean gap of requests that a client sends at once, where nothing else is said."""
LONGEST_DRAW = 3.0
"""Lognormal lengths are cut at so many standard deviations above the median: one in 700 is longer."""


class DecodeStep(NamedTuple):
    """One token for each of some requests."""

    requests: int
    kv_tokens: int
    """Mean tokens in the KV cache per request."""
    rows: int
    """Requests that run: more than `requests` when a captured graph pads them."""
    captured: bool
    """Whether a CUDA graph is replayed; kernels are launched from Python otherwise."""
    padding_routed: bool = True
    """Whether padding rows take experts of their own, or are masked."""
    queries: int = 1
    """Tokens that each request brings: one, or a draft to verify and one more."""

    @property
    def tokens(self) -> int:
        """Rows of the hidden state."""
        return self.rows * self.queries

    @property
    def expert_padding(self) -> int:
        """Padding rows that take experts."""
        return (self.rows - self.requests) * self.queries if self.padding_routed else 0

    @property
    def routed_tokens(self) -> int:
        """Rows with a routing of their own."""
        return self.requests * self.queries

    @property
    def sampled(self) -> int:
        """Rows whose next token is sampled."""
        return self.rows * self.queries


class PrefillChunk(NamedTuple):
    """Prompt tokens of some requests."""

    tokens: int
    requests: int
    attended: int
    """Pairs of new token and token it attends to, summed over the batch."""
    finished: int
    """Requests whose prompt ends in this batch: their first token is sampled."""
    context: int
    """Tokens that the requests have in the KV cache already, summed."""
    absorbed: bool
    """Whether MLA attends to the latent itself, or to keys and values expanded from it, the context's among them."""
    holders: int = 0
    """Ranks that attend for them where attention is split by request; 0 for all."""

    @property
    def captured(self) -> bool:
        """Never: prefill graphs are off under PP and by default (SGLang arg_groups/cuda_graph_hook.py)."""
        return False

    @property
    def expert_padding(self) -> int:
        """Padding rows that take experts: none."""
        return 0

    @property
    def routed_tokens(self) -> int:
        """Rows with a routing of their own."""
        return self.tokens

    @property
    def sampled(self) -> int:
        """Rows whose next token is sampled."""
        return self.finished


class MixedStep(NamedTuple):
    """Decode steps of some requests and prompt tokens of others in one launch."""

    decode: DecodeStep
    prefill: PrefillChunk
    captured: bool
    """Whether the kernels between the attention calls are replayed from graphs."""
    attends: Literal["both", "apart", "decode", "prefill"] = "both"
    """What a rank attends for: both, or where attention is split by request either on ranks of their own, of which the
    slower counts; of the views of such a step, the part that this rank has."""

    @property
    def requests(self) -> int:
        """Requests with tokens in the batch."""
        return self.decode.requests + self.prefill.requests

    @property
    def tokens(self) -> int:
        """Rows of the hidden state."""
        return self.decode.routed_tokens + self.prefill.tokens

    @property
    def expert_padding(self) -> int:
        """Padding rows that take experts: none."""
        return 0

    @property
    def routed_tokens(self) -> int:
        """Rows with a routing of their own."""
        return self.tokens

    @property
    def sampled(self) -> int:
        """Rows whose next token is sampled."""
        return self.decode.routed_tokens + self.prefill.finished


Batch = DecodeStep | PrefillChunk | MixedStep


def mean_kv_tokens(requests: int, kv_tokens: float) -> int:
    """Returns the mean KV length of some requests that hold `kv_tokens` tokens in all, in whole KV blocks."""
    return int(-(-kv_tokens // (requests * KV_BLOCK_TOKENS))) * KV_BLOCK_TOKENS


class RequestSpec(NamedTuple):
    """One request as a user sends it."""

    submit_ps: int
    """Time after the start at which it is sent, or 0 for "when a user is free"."""
    input_len: int
    """Prompt tokens to prefill."""
    output_len: int
    context_len: int = 0
    """Tokens in the KV cache before."""
    max_new_tokens: int = 0
    """Most tokens that the client lets it generate, or 0 for no more than it will."""
    sent_len: int = 0
    """Prompt tokens that it brings as text: those to prefill and those that a prefix cache has."""


@dataclass(frozen=True)
class Workload:
    """A benchmark run as `bench_serving` describes it.

    Closed loop when `request_rate` is None: `concurrency` users send their first requests one after another,
    exponential gaps of `spacing_s` on average apart, and each sends its next one when its last one has ended.
    Open loop otherwise: random arrivals, or those of a `trace`, and at most `max_concurrency` requests in the server
    when that is given: a request beyond waits at the client, and its latencies count from its sending (the semaphore
    of `vllm bench serve --max-concurrency`).

    Raises:
        UsageError: for a number that is zero, negative, not finite, or absurd; it names the flag.
    """

    concurrency: int = 32
    num_prompts: int = 128
    input_len: int = 512
    output_len: int = 256
    random_range_ratio: float = 0.0
    """Lengths are uniform in [L(1−r), L(1+r)] (vllm bench serve; what SGLang's tool calls so is another number)."""
    log_spread: float = 0.0
    """Standard deviation of the logarithm of lognormal lengths with means L; 0 for uniform ones."""
    ignore_eos: bool = True
    """Whether every answer has a length that the client fixes, as benchmarks ask, or ends where the model ends it."""
    max_new_tokens: int = 0
    """Most tokens that the client allows an answer that ends by itself; 0 for no more than it will have."""
    context_len: int = 0
    """Tokens already in the KV cache of each request: its input is then not prefilled beyond one token."""
    spacing_s: float | None = None
    """Mean gap of the users' first requests in a closed loop; None for 0.2 ms, or, where the steady part is measured,
    for first requests spread over the time that one takes, so that no wave has to ebb away first."""
    request_rate: float | None = None
    """Requests per second of the open loop; infinite for all at once."""
    burstiness: float = 1.0
    """Shape of the gamma distribution of the gaps between arrivals: 1 is Poisson, less comes in bursts, more is
    steadier (vLLM benchmarks/serve.py `get_request`)."""
    max_concurrency: int | None = None
    """Most requests in the server in the open loop."""
    duration_s: float | None = None
    """Requests of the open loop that would be sent later than this [s] are left out."""
    prefix_cache_hit_rate: float = 0.0
    """Share of every prompt that is in the KV cache already; at least one token of a prompt is prefilled."""
    warm_up: int = 0
    """The first requests, by completion, that are left out of the metrics; the window begins as the last of them ends.
    """
    like: str = ""
    """In words what the load is like, where it is drawn as a tool or a kind of traffic has it."""
    steady: bool = False
    """Whether metrics are of the steady part of a closed loop: from when the requests of the opening wave have ended
    until the last request is sent."""
    trace: Trace | None = None
    """Arrivals and lengths of the open loop; `input_len` and `output_len` are then its means."""

    def __post_init__(self) -> None:
        for flag, (low, high) in LIMITS.items():
            value = getattr(self, flag.removeprefix("--").replace("-", "_"))
            if not low <= value <= high:
                raise UsageError(flag, value, f"a whole number from {low} to {high:,}")
        if not 0.0 <= self.random_range_ratio <= 1.0:
            raise UsageError("--random-range-ratio", self.random_range_ratio, "a number from 0 to 1")
        if self.spacing_s is not None and not 0.0 <= self.spacing_s <= 3600.0:
            raise UsageError("--submit-spacing", self.spacing_s, "a time from 0 s to 3600 s")
        if not 0.0 <= self.log_spread <= 3.0:
            raise UsageError("--log-spread", self.log_spread, "a number from 0 to 3")
        if self.log_spread and self.random_range_ratio:
            wanted = f"either it or lognormal lengths (spread {self.log_spread:g})"
            raise UsageError("--random-range-ratio", self.random_range_ratio, wanted)
        if self.max_new_tokens and self.ignore_eos:
            raise UsageError("--max-tokens", self.max_new_tokens, "it with answers that end by themselves only")
        if self.max_new_tokens < 0:
            raise UsageError("--max-tokens", self.max_new_tokens, "a whole number above 0")
        if not 0.0 <= self.prefix_cache_hit_rate <= 1.0:
            raise UsageError("--prefix-cache-hit-rate", self.prefix_cache_hit_rate, "a share from 0 to 1")
        self._check_arrivals()
        if self.steady and (not self.closed_loop or self.num_prompts < FEWEST_STEADY_WAVES * self.concurrency):
            given = f"{self.num_prompts:,} requests" if self.closed_loop else "an open loop"
            wanted = f"a closed loop of at least {FEWEST_STEADY_WAVES} requests per user, {self.concurrency:,} of them"
            raise UsageError("--steady", given, f"{wanted}: a shorter one never becomes steady")

    def _check_arrivals(self) -> None:
        rate, burstiness, duration = self.request_rate, self.burstiness, self.duration_s
        if rate is not None and not (0 < rate <= 1e6 or rate == math.inf):
            raise UsageError("--request-rate", rate, "requests per second above 0 and at most 1,000,000, or inf")
        if not 0.001 <= burstiness <= 1e6:
            raise UsageError("--burstiness", burstiness, "a number from 0.001 to 1,000,000")
        if burstiness != 1.0 and (rate is None or rate == math.inf):
            raise UsageError("--burstiness", burstiness, "1 unless a finite --request-rate is given,")
        if duration is not None and not 0 < duration <= LONGEST_SPAN_S:
            raise UsageError("--duration", duration, f"a time above 0 s and at most {LONGEST_SPAN_S:,} s")
        if duration is not None and self.closed_loop:
            raise UsageError("--duration", duration, "a duration with --request-rate or --trace only")
        low, high = LIMITS["--concurrency"]
        if self.max_concurrency is not None and not low <= self.max_concurrency <= high:
            raise UsageError("--max-concurrency", self.max_concurrency, f"a whole number from {low} to {high:,}")
        if self.max_concurrency is not None and self.closed_loop:
            raise UsageError("--max-concurrency", self.max_concurrency, "a limit with --request-rate or --trace only")
        if self.trace is not None and rate is not None:
            raise UsageError("--request-rate", rate, "no rate beside a trace, which has its own arrivals,")

    @property
    def closed_loop(self) -> bool:
        """Whether users wait for their answers before they ask again."""
        return self.request_rate is None and self.trace is None

    @property
    def random(self) -> bool:
        """Whether two seeds give two runs."""
        if self.trace is not None:
            return False
        if self.random_range_ratio or self.log_spread:
            return True
        if self.request_rate is None:
            return self.spacing_s != 0 and self.concurrency > 1
        return self.request_rate < math.inf

    @property
    def opening(self) -> int:
        """Requests, the first to end, that the metrics leave out."""
        return max(self.warm_up, self.concurrency if self.steady else 0)

    @property
    def cached_len(self) -> int:
        """Mean prompt tokens that are in the KV cache already."""
        return (
            self.trace.mean_lengths[2] if self.trace and not self.prefix_cache_hit_rate else self._hit(self.input_len)
        )

    def _hit(self, input_len: int) -> int:
        return min(math.floor(self.prefix_cache_hit_rate * input_len + 1e-9), input_len - 1)

    @property
    def tokens_per_request(self) -> int:
        """Most tokens that one request of this workload can hold in the KV cache."""
        if self.trace is not None:
            return self.context_len + self.trace.longest
        return self.context_len + self.longest_of(self.input_len) + self.longest_of(self.output_len)

    def longest_of(self, mean: int) -> int:
        """Returns the longest prompt or answer [tokens] of those with some mean."""
        if self.log_spread:
            return math.ceil(mean * math.exp(LONGEST_DRAW * self.log_spread - self.log_spread**2 / 2))
        return math.floor(mean * (1.0 + self.random_range_ratio))

    def draw(self, seed: int) -> list[RequestSpec]:
        """Returns the requests of one run; the same seed gives the same run."""
        if self.trace is not None:
            return self._replay(self.trace)
        generator = np.random.default_rng(seed)
        inputs = self._lengths(generator, self.input_len)
        outputs = self._lengths(generator, self.output_len)
        if self.request_rate is not None:
            gaps = self._gaps(generator, self.request_rate)
            submits = np.cumsum(gaps) - gaps[0]
            if self.duration_s is not None:
                submits = submits[submits <= self.duration_s]
        else:
            first = min(self.concurrency, self.num_prompts)
            spacing = BURST_SPACING_S if self.spacing_s is None else self.spacing_s
            gaps = generator.exponential(spacing, first) if spacing else np.zeros(first)
            submits = np.concatenate([np.cumsum(gaps) - gaps[0], np.zeros(self.num_prompts - first)])
        return [
            self._request(to_picoseconds(submit), int(length_in), int(length_out), self._hit(int(length_in)))
            for submit, length_in, length_out in zip(submits, inputs, outputs, strict=False)
        ]

    def _replay(self, trace: Trace) -> list[RequestSpec]:
        cached = trace.cached_len.tolist()
        if self.prefix_cache_hit_rate:
            cached = [self._hit(length) for length in trace.input_len.tolist()]
        columns = trace.arrival_ps.tolist(), trace.input_len.tolist(), trace.output_len.tolist(), cached
        return [self._request(*row) for row in zip(*columns, strict=True)]

    def _request(self, submit_ps: int, input_len: int, output_len: int, cached: int) -> RequestSpec:
        allowed = max(self.max_new_tokens, output_len)
        return RequestSpec(submit_ps, input_len - cached, output_len, self.context_len + cached, allowed, input_len)

    def _gaps(self, generator: np.random.Generator, rate: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Draws the times [s] between arrivals."""
        if rate == math.inf:
            return np.zeros(self.num_prompts)
        if self.burstiness == 1.0:
            return generator.exponential(1.0 / rate, self.num_prompts)
        return generator.gamma(self.burstiness, 1.0 / (rate * self.burstiness), self.num_prompts)

    def _lengths(self, generator: np.random.Generator, mean: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        if self.log_spread:
            drawn = generator.lognormal(math.log(mean) - self.log_spread**2 / 2, self.log_spread, self.num_prompts)
            return np.rint(np.clip(drawn, 1, self.longest_of(mean))).astype(np.int64)
        low = max(1, math.ceil(mean * (1.0 - self.random_range_ratio)))
        high = max(low, math.floor(mean * (1.0 + self.random_range_ratio)))
        return generator.integers(low, high, self.num_prompts, endpoint=True)
