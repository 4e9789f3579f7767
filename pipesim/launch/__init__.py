"""Launch lines of the engines: written for a deployment, and read into pipesim's flags. One file for each engine."""

from pipesim.launch import sglang, vllm
from pipesim.launch.base import Dialect, Launch, LaunchLine

DIALECTS: dict[str, Dialect] = {"sglang": sglang.DIALECT, "vllm": vllm.DIALECT}

__all__ = ["DIALECTS", "Dialect", "Launch", "LaunchLine"]
