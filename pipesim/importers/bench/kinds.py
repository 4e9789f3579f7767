"""What a file looks like that is not of the kind wanted, so that a complaint can say what it is instead."""

import re
import tomllib
from collections.abc import Mapping
from typing import Any

LOG_LINE = re.compile(r"(?:Decode|Prefill) batch\b|Avg generation throughput:|server_args=|max_total_num_tokens=")
TEXTS = (
    (LOG_LINE, "a server's log (for `pipesim import server-log`)"),
    (re.compile(r"^#.*nThread|^#\s+size\s+count\s+type", re.M), "nccl-tests output (for `pipesim import nccl-tests`)"),
    (re.compile(r"\A[^,\n{\[]+(?:,[^,\n]*){2,}\n[^,\n]+(?:,[^,\n]*){2,}(?:\n|\Z)"), "a table in CSV"),
    (re.compile(r"^\s*<(?:!DOCTYPE|html|\?xml)", re.I | re.M), "a web page"),
)
OBJECTS = (
    ({"architectures", "hidden_size"}, "a model's config.json (for `pipesim import hf-config`)"),
    ({"architectures", "text_config"}, "a model's config.json (for `pipesim import hf-config`)"),
    ({"traceEvents"}, "a Chrome trace"),
    ({"metadata", "metrics"}, "aiperf's file of single requests; the summary profile_export_aiperf.json is the one"),
    ({"experiments"}, "the raw profile_export.json; the summary *_genai_perf.json is the one"),
    ({"conversations"}, "a data set of conversations"),
    ({"timestamp", "input_length"}, "a request trace (for `pipesim predict --trace`)"),
    ({"schema_version", "metrics", "deployment"}, "pipesim's own prediction"),
)


def look_of_text(text: str) -> str:
    """Returns in words what a text without JSON in it looks like."""
    first = text.strip().split("\n", 1)[0]
    return known_text(text) or f"text that begins with {first[:40]!r}"


def known_text(text: str) -> str:
    """Returns in words the other kind of text that this is; empty for none that is known."""
    try:
        return "a TOML file" if tomllib.loads(text) else ""
    except ValueError:
        return next((name for pattern, name in TEXTS if pattern.search(text[:200_000])), "")


def look_of_object(document: Mapping[str, Any]) -> str:
    """Returns in words what a JSON object looks like."""
    for keys, name in OBJECTS:
        if keys <= document.keys():
            return name
    names = [str(key) for key in list(document)[:5]]
    return f"a JSON object with {', '.join(names)}{', …' * (len(document) > 5)}" if names else "an empty JSON object"
