"""What would keep a server from starting, found before vLLM is imported, which takes seconds."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from gapless.errors import UsageError

ENTRY_POINTS = "vllm.platform_plugins"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
_GIB = 1 << 30


def require_serving() -> None:
    """Check that vLLM is there, in a version that is known, and will find the plugin.

    Raises:
        UsageError: it is not; with what to install or to unset.
    """
    from importlib.metadata import entry_points

    from gapless.serving.versions import UnsupportedVllm, require_supported_vllm

    try:
        require_supported_vllm()
    except UnsupportedVllm as error:
        raise UsageError(str(error)) from None
    if os.environ.get("VLLM_TARGET_DEVICE") == "cpu":
        raise UsageError("VLLM_TARGET_DEVICE=cpu leaves gapless out; unset it, or use vllm serve")
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and "gapless" not in allowed.split(","):
        raise UsageError(
            f"VLLM_PLUGINS={allowed} leaves gapless out; add gapless to it or unset it, or use "
            "vllm serve to serve without"
        )
    if not any(found.name == "gapless" for found in entry_points(group=ENTRY_POINTS)):
        raise UsageError(
            f"the installed gapless has no entry point {ENTRY_POINTS}, so that vLLM would not find "
            "it; install gapless again"
        )


def option(arguments: Sequence[str], name: str) -> str | None:
    """The value of the last ``--name VALUE`` or ``--name=VALUE``; ``_`` counts as ``-``."""
    value = None
    for position, argument in enumerate(arguments):
        key, equals, given = argument.partition("=")
        if not key.startswith("--") or key.replace("_", "-") != f"--{name}":
            continue
        if equals:
            value = given
        elif position + 1 < len(arguments):
            value = arguments[position + 1]
        else:
            value = ""
    return value


def named_model(arguments: Sequence[str]) -> str | None:
    """The model as the command line names it; None where it does not, or a file of options may."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0]
    return option(arguments, "model")


def may_name_a_model(arguments: Sequence[str]) -> bool:
    """Whether a model may stand behind options, where only vLLM tells it from their values."""
    return option(arguments, "config") is not None or any(
        not after.startswith("-") and (not before.startswith("-") or "=" in before)
        for before, after in pairwise(arguments)
    )


def require_device(arguments: Sequence[str]) -> None:
    """Refuse a choice of device.

    Raises:
        UsageError: ``--device`` was given.
    """
    device = option(arguments, "device")
    if device is not None:
        raise UsageError(
            f"--device {device}: gapless serve serves on the device gapless; leave the option out, "
            "or use vllm serve to serve on another one"
        )


def require_device_opens() -> None:
    """Open the device, in a child: once it has, a process cannot be forked for the engine.

    Raises:
        UsageError: it does not open, as with a wrong value of a variable; with what it says.
    """
    import torch

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        message = ""
        try:
            torch.empty(1, device="gapless").fill_(0)
            torch.accelerator.synchronize()
        except BaseException as error:
            message = str(error).partition("\n")[0] or type(error).__name__
        os.write(writer, message.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        message = answer.read()
    if os.waitpid(child, 0)[1] != 0:
        message = "the device gapless does not open: its driver ended the process"
    if message:
        raise UsageError(message)


def require_port(port: str) -> int:
    """The port that ``--port`` names.

    Raises:
        UsageError: it names none.
    """
    if not port.isdecimal():
        raise UsageError(f"--port {port}: a port is between 0 and 65535")
    return int(port)


def require_model(name: str, options: Sequence[str] = ()) -> None:
    """Check a model folder; what is not a path is a name of the hub, which vLLM looks up.

    Raises:
        UsageError: there is no such folder, or it holds no model that vLLM could load.
    """
    folder = Path(name).expanduser()
    if not folder.exists():
        if name.count("/") == 1 and name[0] not in "/.~" and not name.endswith("/"):
            return
        raise UsageError(
            f"there is no model folder {name}; give the path of a folder with config.json and "
            "*.safetensors, or a model's name on the hub such as owner/name"
        )
    if not folder.is_dir():
        return  # a file in another format, which is vLLM's to judge
    config = folder / "config.json"
    if not config.is_file():
        raise UsageError(f"{name} has no config.json; it is not a Hugging Face model folder")
    try:
        if not isinstance(json.loads(config.read_text()), dict):
            raise ValueError("it is not an object")
    except (OSError, ValueError) as error:
        raise UsageError(f"{config} is not readable as JSON: {error}") from None
    if option(options, "load-format") is None and not any(folder.glob("*.safetensors")):
        raise UsageError(
            f"{name} has no *.safetensors; convert the model to safetensors first, or say with "
            "--load-format what the weights are"
        )


def require_room(name: str, item_bytes: int, free_bytes: int) -> None:
    """Check that a model folder's weights fit, going by the sizes that its files state.

    Args:
        name: a folder; anything else is not looked at.
        item_bytes: bytes that a weight takes once it is loaded.
        free_bytes: what the device has.

    Raises:
        UsageError: they do not fit.
    """
    needed = weight_count(Path(name).expanduser()) * item_bytes
    if needed > free_bytes:
        raise UsageError(
            f"{name} does not fit: its weights take {needed / _GIB:.2f} GiB and the device has "
            f"{free_bytes / _GIB:.2f} GiB free; free memory, raise GAPLESS_MEMORY_LIMIT if it is "
            "set, or serve a smaller model or --dtype bfloat16"
        )


def weight_count(folder: Path) -> int:
    """How many numbers in floating point a folder's safetensors hold; 0 where none is readable."""
    count = 0
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        except (OSError, ValueError, MemoryError):
            continue
        for entry in header.values():
            if entry.get("dtype") in ("F64", "F32", "F16", "BF16"):
                size = 1
                for length in entry["shape"]:
                    size *= length
                count += size
    return count


def require_free_port(host: str, port: int) -> None:
    """Check that a server could listen there.

    Raises:
        UsageError: it could not; with the reason.
    """
    if not 0 <= port <= 65535:
        raise UsageError(f"--port {port}: a port is between 0 and 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)  # two may bind to one port with that option, but not both listen
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UsageError(
                f"cannot listen on {host} port {port}: {reason}; stop what listens there, or give "
                "another --port or --host"
            ) from None
