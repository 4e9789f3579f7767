"""A plan in the words of flags: its settings, and the command that asks about it alone."""

from typing import Any

from pipesim.deployment import Deployment, ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.engines import ENGINES
from pipesim.flags import options_of, words_of

SETTINGS = ("pp_max_micro_batch_size", "pp_async_batch_depth", "chunked_prefill_size", "kv_cache_dtype")
"""Of an engine, what a search sets."""
FURTHER = {option.name for option in options_of(ParallelPlan)} - {"tp", "pp"}
STATED = {option.name for option in options_of(EngineSettings)} - {"engine"}


def settings_json(engine: EngineSettings, layers: list[int] | None) -> dict[str, Any]:
    """Returns the settings of a plan, by the names of their flags."""
    stated = {option.name: getattr(engine, option.field) for option in options_of(EngineSettings)}
    shown = {name: list(value) if isinstance(value, tuple) else value for name, value in stated.items()}
    return {name: value for name, value in shown.items() if name in STATED} | {"layer_partition": layers}


def arguments(deployment: Deployment) -> list[str]:
    """Returns the flags of `pipesim predict` that ask about this deployment."""
    split, engine = deployment.plan, deployment.engine
    named = {"--model": deployment.model.name, "--hardware": deployment.hardware.name, "--engine": engine.name}
    named |= {"--tp": str(split.tp), "--pp": str(split.pp)}
    further = words_of(split, FURTHER) + _assumed_share(deployment) + words_of(engine, STATED)
    return [word for pair in named.items() for word in pair] + further


def plan_flags(deployment: Deployment) -> list[str]:
    """Returns the flags of what a search sets, the share of memory among them where the engine's own would not do."""
    return _assumed_share(deployment) + setting_flags(deployment.engine, deployment.plan)


def setting_flags(engine: EngineSettings, split: ParallelPlan) -> list[str]:
    """Returns the flags of what a search sets beyond the engine's defaults."""
    return words_of(engine, SETTINGS) + words_of(split, ("layer_partition",))


def _assumed_share(deployment: Deployment) -> list[str]:
    share = ENGINES[deployment.engine.name].share
    return [share.flag, f"{share.of(deployment):.4g}"] if deployment.memory_note else []
