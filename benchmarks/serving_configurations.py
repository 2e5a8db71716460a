"""Who takes part in the benchmark of serving, and how each one's process is started."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

_END_S = 30
_ENGINE = Path(__file__).with_name("serving_engine.py")


@dataclass(frozen=True)
class Configuration:
    """One way to run the model: variables for its process, arguments for its engine."""

    name: str
    is_peer: bool
    environment: dict[str, str] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    python: Path = Path(sys.executable)


def ours(cores: int) -> list[Configuration]:
    """This: asynchronous with each count of device threads, and synchronous with the default."""
    one_process = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    counts = [count for count in (1, 2) if count <= cores]
    ahead = [
        Configuration(
            f"asynchronous, {threads(count)}",
            False,
            {**one_process, "GAPLESS_DEVICE_CORES": str(count)},
            {"async_scheduling": True},
        )
        for count in counts
    ]
    in_step = [
        Configuration(
            f"synchronous, {threads(count)}",
            False,
            {**one_process, "GAPLESS_DEVICE_CORES": str(count)},
            {"async_scheduling": False},
        )
        for count in counts[:1]
    ]
    return ahead + in_step


def upstream(cores: int, python: Path) -> list[Configuration]:
    """vLLM's CPU backend: as it comes, and what may be its best; run by that interpreter."""
    cpu = {"VLLM_TARGET_DEVICE": "cpu"}
    found = [Configuration("upstream, default", True, cpu)]
    if cores > 1:
        bound = {**cpu, "VLLM_CPU_OMP_THREADS_BIND": "0-1"}
        found.append(Configuration("upstream, default executor, 2 threads", True, bound))
    for count in [count for count in (1, 2) if count <= cores]:
        for is_eager in (False, True):
            how = "eager" if is_eager else "compiled"
            found.append(
                Configuration(
                    f"upstream, one process, {how}, {threads(count)}",
                    True,
                    {
                        **cpu,
                        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                        "OMP_NUM_THREADS": str(count),
                    },
                    {"enforce_eager": is_eager, "distributed_executor_backend": "uni"},
                )
            )
    return [replace(each, python=python) for each in found]


def threads(count: int) -> str:
    """A count in words."""
    return "1 thread" if count == 1 else f"{count} threads"


class Engine:
    """A configuration's process; it lives until it is ended."""

    def __init__(
        self, configuration: Configuration, common: dict[str, Any], base: dict[str, str], log: Path
    ) -> None:
        self.configuration = configuration
        self._log = log.open("w")
        job = {"engine": {**common, **configuration.engine}}
        self._process = subprocess.Popen(
            [str(configuration.python), str(_ENGINE), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**base, **configuration.environment},
            start_new_session=True,
        )

    def wait_until_ready(self) -> dict[str, Any]:
        """What it says of its start; where this does not return, it is ended.

        Raises:
            RuntimeError: it ended by itself.
        """
        try:
            ready: dict[str, Any] = self._answer()
        except BaseException:
            self._kill()
            raise
        return ready

    def run(self, load: dict[str, int]) -> dict[str, float]:
        """Run a load, and how it went."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(load) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        """End the process; it has nothing to do any more."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._kill()

    def _kill(self) -> None:
        """End whatever is left of its session: upstream has processes of its own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            tail = Path(self._log.name).read_text()[-2000:]
            raise RuntimeError(f"{self.configuration.name} ended: {tail}")
        return json.loads(line)
