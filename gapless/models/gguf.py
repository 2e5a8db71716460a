"""Models that come as GGUF files, unpacked to bf16 safetensors in the usual Hugging Face layout."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gapless.cache.entries import CacheError, Notify, obtain
from gapless.models.errors import ModelError
from gapless.models.quiet_transformers import quiet_transformers

# Raise it whenever the conversion changes, so that entries made by the old one are rebuilt.
CONVERTER_VERSION = "1"


@dataclass(frozen=True)
class Conversion:
    """What one model's conversion needs.

    Attributes:
        entry: its name in the cache.
        source: what it is made from; an entry made from anything else is rebuilt.
        room_bytes: what the files take on the disk, with a margin for the file system.
        remedy: what to install where a package is missing.
        finish: is given the config and the tokenizer, and sets right what the file does not say;
            raises ``ValueError`` at what must not be.
    """

    entry: str
    source: Mapping[str, str]
    room_bytes: int
    remedy: str
    finish: Callable[[Any, Any], None]


def packaged_file(package: str, name: str, remedy: str) -> tuple[Path, str]:
    """A file of an installed package, and the package's version.

    Found through the package's metadata: importing it may import much that is not needed.

    Raises:
        ModelError: the package or its file is missing.
    """
    try:
        found = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise ModelError(f"the package {package} is not installed; {remedy}") from error
    for file in found.files or []:
        path = Path(str(found.locate_file(file)))
        if file.name == name and path.is_file():
            return path, found.version
    raise ModelError(f"{package} {found.version} has no {name}; {remedy}")


def obtain_converted(
    conversion: Conversion,
    gguf: Callable[[Path], Path],
    notify: Notify,
    root: Path | None = None,
) -> Path:
    """The folder of the converted model; converts it first if the cache does not hold it whole.

    Args:
        conversion: which model.
        gguf: gives the GGUF file; it may use the folder that it is given, which is removed.
        notify: is told in one line each what is being done and why.
        root: the cache folder; by default ``GAPLESS_CACHE`` or the user's cache folder.

    Raises:
        ModelError: the file, or a package that is needed to convert it, is missing or broken.
        CacheError: the cache cannot be used.
    """

    def build(folder: Path) -> None:
        free_bytes = shutil.disk_usage(folder).free
        if free_bytes < conversion.room_bytes:
            raise CacheError(
                f"the cache {folder.parent} has {free_bytes / 1e6:.0f} MB free and the model needs "
                f"{conversion.room_bytes / 1e6:.0f} MB; free some space or set GAPLESS_CACHE to "
                "another disk"
            )
        scratch = folder / "unpacking"
        scratch.mkdir()
        try:
            convert(gguf(scratch), folder, conversion, notify)
        finally:
            shutil.rmtree(scratch)

    source = {**conversion.source, "converter": CONVERTER_VERSION}
    return obtain(conversion.entry, source, build, notify, root)


def convert(gguf: Path, folder: Path, conversion: Conversion, notify: Notify) -> None:
    """Unpack a GGUF file to bf16 and write weights, config, tokenizer and chat template.

    Peak memory is about 1 GB for 135 million parameters.

    Raises:
        ModelError: a package that the conversion needs is missing, or the file is not readable.
    """
    notify(f"converting {gguf.name} to bf16 safetensors (once, about half a minute)")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    remedy = conversion.remedy
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    except ImportError as error:
        raise ModelError(f"transformers cannot read GGUF files ({error}); {remedy}") from error

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
            conversion.finish(model.config, tokenizer)
            model.config.name_or_path = gguf.stem
            notify("writing the files")
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    except ImportError as error:  # transformers asks for gguf or accelerate only when it needs them
        raise ModelError(f"{str(error).strip().splitlines()[0]} {remedy}") from error
    except ValueError as error:
        if "accelerate" in str(error):
            raise ModelError(f"the package accelerate is not installed; {remedy}") from error
        raise ModelError(f"{gguf} cannot be converted: {error}") from error
