"""Loading a causal language model from a folder in the Hugging Face layout.

Only safetensors are read, never pickles; no code from the folder is run, and nothing is fetched.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gapless.models.errors import ModelError
from gapless.models.quiet_transformers import quiet_transformers

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DTYPE_NAMES = ("auto", *_DTYPES)


@dataclass(frozen=True)
class DtypeChoice:
    """A dtype, and why it was chosen, in a few words."""

    dtype: torch.dtype
    why: str

    @property
    def name(self) -> str:
        """``float32`` rather than ``torch.float32``."""
        return str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class LoadedModel:
    """A model in eval mode on its device, with its tokenizer.

    Attributes:
        model: the ``transformers`` causal LM.
        tokenizer: its tokenizer.
        dtype: of its weights, and why.
        stop_tokens: the token ids that end an answer.
    """

    model: Any
    tokenizer: Any
    dtype: DtypeChoice
    stop_tokens: tuple[int, ...]


def choose_dtype(name: str, device: torch.device) -> DtypeChoice:
    """Resolve a dtype's name; ``auto`` takes bfloat16 only where it is computed natively.

    Host cores without AVX-512 or AMX emulate bfloat16: with more than one row of input its matrix
    products take about twice the time of float32.

    Raises:
        ModelError: the name is none of ``DTYPE_NAMES``.
    """
    if name in _DTYPES:
        return DtypeChoice(_DTYPES[name], "as asked")
    if name != "auto":
        raise ModelError(f"the dtype {name!r} is unknown; use one of {', '.join(DTYPE_NAMES)}")
    if device.type not in ("cpu", "gapless"):
        return DtypeChoice(torch.bfloat16, f"native on {device.type}")
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return DtypeChoice(torch.bfloat16, "this CPU computes it natively")
    return DtypeChoice(torch.float32, "this CPU has no AVX-512 or AMX and would emulate bfloat16")


def load_model(path: str | Path, device: torch.device, dtype: str = "auto") -> LoadedModel:
    """Load a model folder onto a device.

    Args:
        path: a folder with ``config.json``, ``*.safetensors`` and a tokenizer.
        device: where the weights go.
        dtype: one of ``DTYPE_NAMES``.

    Raises:
        ModelError: no such folder, something is missing from it, or the architecture is not known.
        torch.OutOfMemoryError: the weights do not fit on the device.
    """
    folder = Path(path).expanduser()
    architecture = _require_folder(folder)
    choice = choose_dtype(dtype, device)
    # Read when huggingface_hub is first imported, which is why it is set before transformers is.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    strict = {"local_files_only": True, "trust_remote_code": False}
    try:
        with quiet_transformers():
            model = AutoModelForCausalLM.from_pretrained(
                str(folder),
                dtype=choice.dtype,
                use_safetensors=True,
                attn_implementation="sdpa",
                **strict,
            )
            tokenizer = AutoTokenizer.from_pretrained(str(folder), **strict)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a malformed folder provokes inside transformers
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(
            f"{folder} ({architecture}) cannot be loaded: {reason[0]}; "
            "use a folder of a causal language model that transformers supports"
        ) from error
    model.eval()
    model.requires_grad_(False)
    model.to(device)
    return LoadedModel(model, tokenizer, choice, _stop_tokens(model, tokenizer))


def _require_folder(folder: Path) -> str:
    """Check what can be checked without transformers, which takes seconds to import."""
    if not folder.is_dir():
        raise ModelError(
            f"there is no model folder {folder}; give the path of a folder with config.json "
            "and *.safetensors"
        )
    config_path = folder / "config.json"
    if not config_path.is_file():
        raise ModelError(f"{folder} has no config.json; it is not a Hugging Face model folder")
    try:
        config = json.loads(config_path.read_text())
        architectures = config.get("architectures") or []
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"{config_path} is not readable as JSON: {error}") from error
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"{folder} has no *.safetensors; other weight formats are not read, because pickles "
            "can run code: convert the model to safetensors first"
        )
    if "auto_map" in config:
        raise ModelError(
            f"{folder} brings its own modelling code, which is never run; "
            "use a model that transformers supports itself"
        )
    return ", ".join(architectures) or str(config.get("model_type", "unknown architecture"))


def _stop_tokens(model: Any, tokenizer: Any) -> tuple[int, ...]:
    stops: set[int] = set()
    for source in (model.generation_config, model.config, tokenizer):
        eos = getattr(source, "eos_token_id", None)
        if eos is not None:
            stops.update(eos if isinstance(eos, list | tuple) else [eos])
    return tuple(sorted(stops))
