"""`pipesim import bench`: benchmark results as measured runs."""

from pipesim.asking import takes
from pipesim.commands.shared import Json, Output, import_app
from pipesim.commands.supplied import Files, give_back
from pipesim.importers.supplied import Supplied


@import_app.command("bench")
@takes(Supplied)
def import_bench_command(said: Supplied, files: Files, output: Output = None, as_json: Json = False) -> None:
    """Turn benchmark results into measured runs, which `pipesim validate` then compares with predictions.

    Read are sglang.bench_serving, its one-batch tools, vllm bench serve, latency and throughput, aiperf, genai-perf
    and InferenceX aggregates; a file's content says which.

    Example: pipesim import bench results.jsonl --tp 8 -o my-runs.toml
    """
    from pipesim.cost.memory import model_bytes  # noqa: PLC0415 - only this command needs them
    from pipesim.importers.bench import read_bench  # noqa: PLC0415
    from pipesim.importers.run_files import run_file  # noqa: PLC0415

    read = [(path, read_bench(path)) for path in files]
    found = [(path, where, record) for path, file in read for where, record in file.runs]
    refused = [error for _, file in read for error in file.refused]
    give_back(run_file(found, said, model_bytes), files, refused, output, as_json)
