"""Checking or converting a packaged model in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from gapless.cache.entries import CacheError
from gapless.models.errors import ModelError
from gapless.models.packaged import PACKAGED

_GRACE_S = 10.0


class Obtaining:
    """Begins at once, beside the caller, and ends with it, however that ends.

    Converting computes with a team of threads, and a process that has had one cannot be forked:
    OpenMP waits in the child for threads that are not there.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gapless.models.obtaining", name],
            stdin=subprocess.PIPE,  # whose end tells it that nobody waits any more
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,  # Ctrl-C is for the caller
        )

    def folder(self) -> Path:
        """Where the model is, once it is there.

        Raises:
            ModelError: the package with the weights, or one needed to convert them, is missing, or
                the process was killed.
            CacheError: the cache cannot be used.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._process.stdin, self._process.stdout:
            text = self._process.stdout.read()
        code = self._process.wait()
        if not text:
            raise ModelError(
                f"the process that converts {self.name} ended with {code} before it was done, as "
                "where memory is short; start again"
            )
        answer = json.loads(text)
        if "folder" in answer:
            return Path(answer["folder"])
        raise (CacheError if answer["is_cache"] else ModelError)(answer["error"])

    def cancel(self) -> None:
        """It is not wanted any more; what it has half written it removes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()


def main() -> None:
    """Obtain the model that the command line names, and write the answer to standard output."""
    answer_to = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else is printed
    # A caller that was started in the background may ignore it, and so would this process.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=_end_with_caller, daemon=True).start()
        answer: dict[str, object] = {"folder": str(PACKAGED[sys.argv[1]](_say))}
    except (ModelError, CacheError) as error:
        answer = {"error": str(error), "is_cache": isinstance(error, CacheError)}
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who has the answer does not wait any more
    with os.fdopen(answer_to, "w") as file:
        json.dump(answer, file)
    sys.stdout.flush()
    os._exit(0)  # the thread reads still


def _end_with_caller() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGINT)  # what is half written is removed
    time.sleep(_GRACE_S)
    os._exit(128 + signal.SIGINT)


def _say(text: str) -> None:
    print(f"gapless: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
