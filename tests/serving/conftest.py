import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


class Warm:
    """A process that has imported vLLM for a platform, and runs engines in children of its own."""

    def __init__(self, platform, folder):
        self.folder = folder
        self.jobs = 0
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
        if platform == "cpu":
            environment["VLLM_TARGET_DEVICE"] = "cpu"
        self.log = open(folder / f"{platform}.log", "w")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(HERE / "warm_engine.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=environment,
            cwd=HERE,
        )
        assert self.line() == {"platform": platform}

    def line(self):
        """The next answer; other things that are printed are left out."""
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        self.log.flush()
        raise AssertionError(
            f"the engines' process died: {Path(self.log.name).read_text()[-4000:]}"
        )

    def run(self, model, requests, environment=None, sessions=(), **engine):
        """The answers and facts of one engine."""
        self.jobs += 1
        out = self.folder / f"{id(self)}-{self.jobs}.json"
        arguments = {
            "model": model,
            "dtype": "float32",
            "max_model_len": 512,
            "max_num_seqs": 64,
            "kv_cache_memory_bytes": 64 << 20,
            "seed": 0,
            **engine,
        }
        job = {
            "engine": arguments,
            "requests": requests,
            "sessions": list(sessions),
            "out": str(out),
            "environment": environment or {},
        }
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer = self.line()
        if not out.exists():
            self.log.flush()
            raise AssertionError(f"{answer}: {Path(self.log.name).read_text()[-4000:]}")
        result = json.loads(out.read_text())
        return result

    def answers(self, *args, **kwargs):
        """As run, of an engine that must not fail."""
        result = self.run(*args, **kwargs)
        assert "error" not in result, result["trace"]
        return result["answers"], result["facts"]

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)
        self.log.close()


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    folder = tmp_path_factory.mktemp("engines")
    processes = {}

    def platform(name):
        if name not in processes:
            processes[name] = Warm(name, folder)
        return processes[name]

    yield platform
    for process in processes.values():
        process.end()


@pytest.fixture(scope="session")
def gapless(warm):
    return warm("gapless")


@pytest.fixture(scope="session")
def upstream(warm):
    return warm("cpu")


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    from tests.serving import models

    made = {}

    def folder(architecture):
        if architecture not in made:
            path = tmp_path_factory.mktemp(architecture)
            made[architecture] = models.save(architecture, path)
        return made[architecture]

    return folder
