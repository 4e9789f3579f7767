"""`pipesim import server-log`: the throughput that a server's log shows, as measured runs."""

from pipesim.asking import takes
from pipesim.commands.shared import Json, Output, import_app
from pipesim.commands.supplied import Files, give_back
from pipesim.importers.supplied import Supplied


@import_app.command("server-log")
@takes(Supplied)
def import_server_log_command(said: Supplied, files: Files, output: Output = None, as_json: Json = False) -> None:
    """Turn the log of an SGLang or vLLM server into a measured run: its steady generation throughput.

    What users asked for is not in a log: --concurrency, --input-len and --output-len say it better than the
    estimates that are made of the counted tokens.

    Example: pipesim import server-log server.log --input-len 1024 --output-len 512 -o my-run.toml
    """
    from pipesim.cost.memory import model_bytes  # noqa: PLC0415 - only this command needs them
    from pipesim.importers.run_files import run_file  # noqa: PLC0415
    from pipesim.importers.server_log import read_server_log  # noqa: PLC0415

    read = [(path, read_server_log(path, said.pp)) for path in files]
    refused = [error for _, file in read for error in file.refused]
    give_back(
        run_file([(path, "", file.run) for path, file in read], said, model_bytes), files, refused, output, as_json
    )
