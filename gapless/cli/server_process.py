"""A ``gapless serve`` in a process of its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from threading import Thread

from gapless.errors import GaplessError

HOST = "127.0.0.1"
_PREFIX = "gapless: "
_READY = re.compile(r"serving (?P<name>.+) on (?P<url>https?://\S+), ready after (?P<s>[\d.]+) s")
_STARTING = re.compile(r"starting .+ in (?P<dtype>\w+) \((?P<why>.+)\)")
_STOP_S = 40
_KEPT_LINES = 40
_SET_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG


class ServerProcess:
    """A server that was started; it is to be stopped, which ends its engine as well.

    Attributes:
        url: where its API is.
        model: what it calls its model.
        dtype: of the weights.
        why: why that dtype was chosen.
        ready_s: seconds from its start until it answered.
    """

    url = model = dtype = why = ""
    ready_s = 0.0

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        notify: Callable[[str], None],
    ) -> None:
        """Start it.

        Args:
            arguments: of ``gapless serve``, without host and port.
            environment: variables to set besides those of this process.
            notify: is told what the server says while it starts.
        """
        command = [sys.executable, "-m", "gapless", "serve", *arguments]
        command += ["--host", HOST, "--port", str(free_port())]
        self._notify = notify
        self._said: list[str] = []
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # so that Ctrl-C is this process's, which stops the server
            preexec_fn=_die_with_parent,
        )

    @property
    def pid(self) -> int:
        """Of the server's process."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Wait; where this does not return, the server is ended.

        Raises:
            GaplessError: it did not start.
        """
        try:
            self._read_until_ready()
        except BaseException:
            self._kill()
            raise
        Thread(target=self._listen, daemon=True).start()

    def stop(self) -> None:
        """Let it finish its requests, and end it; it is gone afterwards in any case.

        Raises:
            GaplessError: it had to be killed.
        """
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            raise GaplessError(f"the server did not stop within {_STOP_S} s") from None
        finally:
            self._kill()

    def _read_until_ready(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        for line in stream:
            self._keep(line)
            if not line.startswith(_PREFIX):
                continue
            text = line.removeprefix(_PREFIX).strip()
            if found := _READY.fullmatch(text):
                self.model, self.url, self.ready_s = found["name"], found["url"], float(found["s"])
                return
            if found := _STARTING.fullmatch(text):
                self.dtype, self.why = found["dtype"], found["why"]
            self._notify(f"server: {text}")
        code = self._process.wait()
        errors = [line for line in self._said if line.startswith(f"{_PREFIX}error: ")]
        reason = (
            errors[-1].removeprefix(f"{_PREFIX}error: ").strip()
            if errors
            else f"it ended with code {code}: {' '.join(self._said[-1:]).strip()}"
        )
        raise GaplessError(f"the server did not start: {reason}")

    def _listen(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        for line in stream:
            self._keep(line)

    def _keep(self, line: str) -> None:
        self._said.append(line)
        del self._said[:-_KEPT_LINES]

    def _kill(self) -> None:
        # The session is the server's and its engine's alone.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)
