import signal
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from gapless.cli import build_app
from gapless.cli.generate import StreamPrinter
from tests.tiny_model import generate, save_tiny, tiny_llama, tiny_tokenizer

ENTRY = "from gapless.cli import main; main()"


def devices():
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return ["cpu"] if accelerator is None else ["cpu", accelerator.type]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def invoke(folder):
    def run(*arguments):
        model = () if "--model" in arguments else ("--model", str(folder))
        options = ("--dtype", "float32", *model, *arguments)
        return CliRunner().invoke(build_app(), ["generate", *options])

    return run


def expected(prompt, new_tokens):
    tokens = generate(tiny_llama(), prompt, new_tokens, stop=True)
    return tiny_tokenizer().decode(tokens, skip_special_tokens=True) + "\n"


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("mode", ["--sequential", "--double-buffer"])
def test_the_text_is_that_of_transformers(invoke, device, mode):
    result = invoke(
        "--prompt", "w9 w30", "--no-chat", "--max-new-tokens", "20", "--device", device, mode
    )
    assert result.exit_code == 0, result.output
    assert result.stdout == expected([12, 33], 20)


def test_the_chat_template_is_used_where_there_is_one(invoke):
    result = invoke("--prompt", "w9", "--max-new-tokens", "10", "--device", "cpu")
    assert result.stdout == expected([4, 12, 5], 10)


def test_a_full_context_is_said(invoke):
    result = invoke("--prompt", "w9", "--no-chat", "--context", "5", "--device", "cpu")
    assert result.exit_code == 0
    assert result.stdout == expected([12], 5)
    assert "the context of 5 positions is full" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--model", "/nowhere"), 1, "there is no model folder /nowhere"),
        (("--device", "xpu"), 2, "there is no device 'xpu'"),
        (("--max-new-tokens", "0"), 2, "--max-new-tokens is 0"),
        (("--context", "97"), 2, "the model has 96"),
        (("--context", "2"), 2, "has 3 tokens and the context has 2 positions"),
        (("--dtype", "int3"), 1, "'int3' is unknown"),
    ],
)
def test_wrong_input_is_one_line(invoke, arguments, code, words):
    result = invoke("--prompt", "w9", *arguments)
    assert result.exit_code == code
    lines = [line for line in result.stderr.splitlines() if line.startswith("gapless: error: ")]
    assert len(lines) == 1
    assert words in lines[0]
    assert "Traceback" not in result.output


def test_a_chat_without_a_template_is_refused(invoke, tmp_path):
    plain = save_tiny(tmp_path, chat=False)
    result = invoke("--model", str(plain), "--prompt", "w9", "--chat", "--device", "cpu")
    assert result.exit_code == 1
    assert "no chat template; use --no-chat" in result.stderr


@pytest.mark.parametrize("device", devices())
def test_an_interrupt_keeps_the_text_and_ends_with_130(invoke, monkeypatch, device):
    original = StreamPrinter.__call__

    def interrupted(self, result):
        original(self, result)
        if self.count == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(StreamPrinter, "__call__", interrupted)
    result = invoke("--prompt", "w9 w30", "--no-chat", "--device", device)
    assert result.exit_code == 130
    assert result.stdout == expected([12, 33], 3)
    assert result.stderr.endswith("\ngapless: interrupted\n")


@pytest.mark.parametrize("device", devices())
def test_ctrl_c_ends_the_process(folder, tmp_path, device):
    command = [sys.executable, "-c", ENTRY, "generate", "--model", str(folder), "--no-chat"]
    command += ["--prompt", "w9 w30", "--max-new-tokens", "90", "--device", device]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr.readline()  # it says that it loads: the command has begun
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "gapless: interrupted" in errors
    assert "Traceback" not in errors
