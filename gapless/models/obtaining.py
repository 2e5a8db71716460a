"""Checking or converting a packaged model in a process of its own."""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from gapless.models.errors import ModelError
from gapless.models.packaged import PACKAGED


class Obtaining:
    """Begins at once, beside the caller.

    Converting computes with a team of threads, and a process that has had one cannot be forked:
    OpenMP waits in the child for threads that are not there.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        # It ends after its only task, also where nobody asks for the folder.
        self._process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self._folder = self._process.submit(_obtain, name)

    def folder(self) -> Path:
        """Where the model is, once it is there.

        Raises:
            ModelError: the package with the weights, or one needed to convert them, is missing, or
                the process was killed.
            CacheError: the cache cannot be used.
        """
        try:
            return self._folder.result()
        except BrokenProcessPool as error:
            raise ModelError(
                f"the process that converts {self.name} ended before it was done, as where memory "
                "is short; start again"
            ) from error
        finally:
            self._process.shutdown()


def _obtain(name: str) -> Path:
    return PACKAGED[name](_say)


def _say(text: str) -> None:
    print(f"gapless: {text}", file=sys.stderr, flush=True)
