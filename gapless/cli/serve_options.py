"""vLLM's own options for a server, with the defaults that suit the device."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser

from gapless.cli.serve_checks import DEFAULT_HOST
from gapless.errors import UsageError

if TYPE_CHECKING:
    from gapless.models.load import DtypeChoice

# vLLM's value for: as long as the model's, or as what fits into the cache of keys and values.
_AS_LONG_AS_FITS = -1
SEQUENCES_PER_CORE = 32
_MOST_SEQUENCES = 256
DRAIN_S = 20
_FOR_PROGRAMMERS = re.compile(r"\[type=.*\]$|^\s*For further information visit .*")


class _Parser(FlexibleArgumentParser):
    """Raises what argparse would print with pages of usage before."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{_joined(message)}; gapless serve --help=WORD searches the options")


def _joined(message: str) -> str:
    """In one line, without what pydantic says for programmers."""
    lines = [_FOR_PROGRAMMERS.sub("", line).strip() for line in message.splitlines()]
    return " ".join(line for line in lines if line)


@dataclass(frozen=True)
class ServerOptions:
    """What to serve and how, as vLLM takes it."""

    arguments: argparse.Namespace
    model: str
    name: str
    dtype: DtypeChoice


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse vLLM's options; ``model`` is None where none is named.

    Raises:
        UsageError: vLLM does not take them.
    """
    parser = _Parser(prog="gapless", add_help=False)
    commands = parser.add_subparsers(dest="subparser", parser_class=_Parser)
    serve = ServeSubcommand()
    options = serve.subparser_init(commands)
    options.usage = "gapless serve [MODEL] [options]"
    options.description = None
    options.epilog = "gapless serve --help=GROUP, --help=WORD or --help=all shows options."
    options.set_defaults(
        model=None,
        host=DEFAULT_HOST,
        max_model_len=_AS_LONG_AS_FITS,
        shutdown_timeout=DRAIN_S,
        uvicorn_log_level="warning",
        use_tqdm_on_load=False,
    )
    try:
        parsed = parser.parse_args(["serve", *arguments])
        parsed.model = parsed.model_tag = parsed.model_tag or parsed.model
        serve.validate(parsed)
    except (ValueError, TypeError, KeyError, argparse.ArgumentTypeError) as error:
        raise UsageError(" ".join(str(error).split())) from None
    assert isinstance(parsed, argparse.Namespace)
    return parsed


def complete(parsed: argparse.Namespace, model: str, own_name: str | None) -> ServerOptions:
    """Fill in what depends on the model and on the machine.

    Args:
        parsed: what ``parse`` gave; changed.
        model: the folder, or the name on the hub.
        own_name: what clients call the model where nobody said; by default the folder's name.
    """
    import torch

    from gapless.models.load import choose_dtype

    parsed.model = parsed.model_tag = model
    chosen = choose_dtype(_short(parsed.dtype), torch.device("gapless"))
    if parsed.dtype == "auto":
        parsed.dtype = chosen.name
    if not parsed.served_model_name:
        folder = Path(model).expanduser()
        parsed.served_model_name = [
            own_name or (folder.resolve().name if folder.is_dir() else model)
        ]
    if parsed.max_num_seqs is None:
        cores = torch.gapless.get_device_properties().cores  # type: ignore[attr-defined]
        parsed.max_num_seqs = min(_MOST_SEQUENCES, SEQUENCES_PER_CORE * cores)
    return ServerOptions(parsed, model, parsed.served_model_name[0], chosen)


def _short(dtype: str) -> str:
    return {"half": "float16", "float": "float32"}.get(dtype, dtype)
