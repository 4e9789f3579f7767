"""The options that set an engine's flags, under the engines' own names."""

from typing import Annotated

import typer

from pipesim.engine_settings import AllReduceChoice

Cap = Annotated[int | None, typer.Option("--pp-max-micro-batch-size", help="Most requests in one micro-batch slot.")]
Depth = Annotated[int, typer.Option("--pp-async-batch-depth", help="Slots beyond one per stage.")]
MaxRunning = Annotated[
    int | None, typer.Option("--max-running-requests", "--max-num-seqs", help="Most requests in the server.")
]
Chunk = Annotated[
    int | None, typer.Option("--chunked-prefill-size", "--max-num-batched-tokens", help="Prompt tokens of one launch.")
]
ContextLength = Annotated[
    int | None, typer.Option("--context-length", "--max-model-len", help="Most tokens of a request, output included.")
]
MemFraction = Annotated[
    float | None,
    typer.Option(
        "--mem-fraction-static",
        help="SGLang's share of free memory for weights and KV cache (default: SGLang's own where that starts).",
    ),
]
Utilization = Annotated[
    float | None, typer.Option("--gpu-memory-utilization", help="vLLM's share of all GPU memory (default: its own).")
]
CapDecodes = Annotated[
    bool, typer.Option("--cap-decodes-per-step", help="vLLM's open proposal: even groups of --max-num-seqs / pp.")
]
EngineVersion = Annotated[str | None, typer.Option("--engine-version", help="Version of the engine that runs.")]
Async = Annotated[
    bool | None,
    typer.Option("--async-scheduling/--no-async-scheduling", help="vLLM's scheduler runs ahead (by version)."),
]
LanguageOnly = Annotated[
    bool, typer.Option("--language-only", help="SGLang: without the vision tower, and its cut of the memory share.")
]
MixedChunk = Annotated[
    bool, typer.Option("--enable-mixed-chunk", help="SGLang: a slot's decodes run in one launch with its prompts.")
]
DynamicChunking = Annotated[
    bool, typer.Option("--enable-dynamic-chunking", help="SGLang: chunks of a long prompt shrink to equal times.")
]
SmoothFactor = Annotated[
    float, typer.Option("--dynamic-chunking-smooth-factor", help="Share of the way to the chunk of equal time.")
]
PrefillDecodeInterval = Annotated[
    int, typer.Option("--prefill-decode-interval", help="SGLang: turns that decode between two prefill launches.")
]
PrefillDecodeIntervalMinBs = Annotated[
    int, typer.Option("--prefill-decode-interval-min-bs", help="SGLang: running requests from which that holds.")
]
PrefillScheduleInterval = Annotated[
    int, typer.Option("--prefill-schedule-interval", help="vLLM: prompt tokens in every n-th step only.")
]
Conservativeness = Annotated[
    float, typer.Option("--schedule-conservativeness", help="SGLang: factor on the output expected at admission.")
]
Acceptance = Annotated[
    str | None,
    typer.Option("--speculative-acceptance", help='Acceptance of each draft token, such as "0.7,0.6,0.5".'),
]
Eager = Annotated[bool, typer.Option("--enforce-eager", help="The same as --no-cuda-graph, in vLLM's words.")]
Graph = Annotated[
    bool, typer.Option("--cuda-graph/--no-cuda-graph", help="Captured decode, or kernels launched eagerly.")
]
KvDtype = Annotated[str, typer.Option("--kv-cache-dtype", metavar="<auto|bf16|fp8>", help="Storage of the KV cache.")]
PeerAccess = Annotated[
    bool | None,
    typer.Option("--p2p/--no-p2p", help="Peer access between GPUs, or staging through the host (default: as the box)."),
]
Placement = Annotated[
    str | None, typer.Option("--placement", help='GPU of each rank, such as "0,2,1,3" (default: in order).')
]
AllReduce = Annotated[
    AllReduceChoice,
    typer.Option("--allreduce", help="AllReduce implementation; auto is the engine's own rule."),
]
