"""What many tests share: the shipped profiles, and the command line run in this process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings

from pipesim import cli
from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.prediction import Predictor, deploy
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.model import ModelProfile
from pipesim.profiles.store import load_hardware, load_model

settings.register_profile("pipesim", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("pipesim")

ROOT = Path(__file__).resolve().parent.parent
BOX, KIMI = load_hardware("rtx-pro-6000-x8"), load_model("kimi-k2.6")


def without_front_end(box: HardwareProfile) -> HardwareProfile:
    """Returns a box on which requests are before the scheduler the moment they are sent, for tests of it alone."""
    return box.model_copy(update={"host": box.host.model_copy(update={"front_end": {}})})


BARE = without_front_end(BOX)
"""The founding box so."""


class Ran(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.out)
        return document


RunCli = Callable[..., Ran]


@pytest.fixture
def run_cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCli:
    """Runs `pipesim ARGS` in this process and returns exit code, stdout and stderr."""

    def run(*arguments: object) -> Ran:
        monkeypatch.setattr("sys.argv", ["pipesim", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return Ran(int(ended.value.code or 0), captured.out, captured.err)

    return run


def predictor(tp: int, pp: int, box: HardwareProfile = BOX, **flags: object) -> Predictor:
    """Kimi K2.6 on a box under a split and engine flags."""
    return Predictor(deploy(KIMI, box, ParallelPlan(tp, pp), EngineSettings(**flags)))  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def box() -> HardwareProfile:
    """The founding box."""
    return BOX


@pytest.fixture(scope="session")
def kimi() -> ModelProfile:
    """Kimi K2.6."""
    return KIMI
