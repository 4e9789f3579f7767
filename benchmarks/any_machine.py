"""Whether the tests pass on any machine: a fresh clone under several Pythons, kinds of CPU, threads, time zones, users.

python benchmarks/any_machine.py [--pythons 3.11,3.12,/usr/bin/python3] [--as-user NAME] [--short] [PYTEST ARGUMENTS …]

Without pytest arguments the README's test command runs, `pytest -n auto`; with some, `pytest` with these. Each Python
gets an environment of its own, made as the README says. OPENBLAS_CORETYPE stands for the kind of CPU: numpy's linear
algebra then takes the kernels of that one, which round differently. A line is printed for each combination; the exit
code is 1 if one fails. `--short` takes every value once or more instead of every combination.
"""

import argparse
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
CORES = ("Haswell", "SkylakeX", "Zen")
THREADS = ("1", "2")
ZONES = ("UTC", "Pacific/Chatham")
"""The second is 12 hours and 45 minutes ahead, with summer time."""
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
NARROW = {"COLUMNS": "60", "LC_ALL": "C", "TERM": "dumb"}


def interpreter(version: str) -> Path | None:
    """Returns the interpreter of a version: on the path, or the newest that pyenv holds; or that of a path."""
    if "/" in version:
        return Path(version)
    if found := shutil.which(f"python{version}"):
        asked = [found, "-c", "import sys; print(sys.executable)"]
        ran = subprocess.run(asked, capture_output=True, text=True, check=False)
        if ran.returncode == 0:
            return Path(ran.stdout.strip())
    versions = (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python")
    return max(versions, default=None)


def prepared(folder: Path, version: str) -> Path | None:
    """Returns the interpreter of a fresh environment and clone with what its tests need; None without Python."""
    base = interpreter(version)
    if base is None:
        return None
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder / "clone")], check=True)
    subprocess.run([str(base), "-m", "venv", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", "-e", f"{folder / 'clone'}[test]"], check=True)
    return python


def tested(python: Path, clone: Path, variables: dict[str, str], user: str | None, arguments: list[str]) -> str:
    """Returns pytest's last line, after "ok" or "FAILED"; the home folder is empty, the order of files as it comes."""
    with tempfile.TemporaryDirectory() as home:
        if user:
            shutil.chown(home, user)
        environment = {"PATH": f"{python.parent}:{os.environ['PATH']}", "HOME": home, **variables}
        command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        ran = subprocess.run(
            command, cwd=clone, env=environment, capture_output=True, text=True, check=False, **as_user(user)
        )
    lines = (ran.stdout + ran.stderr).strip().splitlines() or ["no output"]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return "\n    ".join(["ok     " + lines[-1] if ran.returncode == 0 else "FAILED " + lines[-1], *failed])


def as_user(user: str | None) -> dict[str, object]:
    """Returns what makes `subprocess.run` change its user; only root may."""
    return {"user": user, "group": user_group(user), "extra_groups": []} if user else {}


def user_group(user: str) -> int:
    """Returns the group of a user."""
    import pwd  # noqa: PLC0415 - not on every system

    return pwd.getpwnam(user).pw_gid


def combinations(short: bool) -> list[tuple[str, str, str, bool]]:
    """Returns kinds of CPU, threads, time zones, and whether the terminal is narrow and the locale plain."""
    whole = list(itertools.product(CORES, THREADS, ZONES, (False, True)))
    return whole[:: len(ZONES) * 2 + 1] if short else whole


def main() -> int:
    """Runs every combination and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pythons", default=",".join(PYTHONS))
    parser.add_argument("--as-user", metavar="NAME")
    parser.add_argument("--short", action="store_true")
    options, arguments = parser.parse_known_args()
    failures = 0
    for version in options.pythons.split(","):
        with tempfile.TemporaryDirectory() as folder:
            python = prepared(Path(folder), version)
            if python is None:
                print(f"Python {version}: not found, left out")
                continue
            if options.as_user:
                Path(folder).chmod(0o755)
                subprocess.run(["chown", "-R", options.as_user, folder], check=True)
            for core, threads, zone, narrow in combinations(options.short):
                variables = {"OPENBLAS_CORETYPE": core, "TZ": zone} | dict.fromkeys(THREAD_VARIABLES, threads)
                begun = time.monotonic()
                clone = Path(folder) / "clone"
                variables |= NARROW if narrow else {"LC_ALL": "C.UTF-8"}
                result = tested(python, clone, variables, options.as_user, arguments or ["-n", "auto"])
                failures += not result.startswith("ok")
                what = f"Python {version}  {core:<9}{threads} thread(s)  {zone:<16}{'narrow' if narrow else '':<7}"
                print(f"{what} {time.monotonic() - begun:4.0f} s  {result}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
