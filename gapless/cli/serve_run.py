"""Running vLLM's server: when it is ready, how it is stopped, and why it ended."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import multiprocessing.util
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gapless.cli.serve_drain import start_draining
from gapless.errors import GaplessError

if TYPE_CHECKING:
    from gapless.cli.serve_options import ServerOptions

_POLL_S = 0.05
_ENDED = "the engine ended by itself, and the server with it; start it again"
_ANY_HOST = {None: "127.0.0.1", "": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def run(options: ServerOptions, start_s: float) -> None:
    """Serve until a signal comes.

    Raises:
        GaplessError: the engine did not start, or ended by itself.
    """
    import uvloop
    from vllm.entrypoints.cli.serve import ServeSubcommand

    from gapless.cli.serve_drain import MIDDLEWARE
    from gapless.cli.serve_failure import FailureReport, explained

    arguments = options.arguments
    say(f"starting {options.name} in {options.dtype.name} ({options.dtype.why})")
    report = FailureReport()
    report.install()
    is_simple = not (arguments.headless or arguments.grpc) and arguments.data_parallel_size == 1
    try:
        if is_simple and arguments.api_server_count in (None, 1):
            arguments.api_server_count = None
            arguments.middleware = [*arguments.middleware, MIDDLEWARE]
            uvloop.run(_serve(options, start_s))
        else:
            ServeSubcommand.cmd(arguments)
    except GaplessError:
        raise
    except Exception as error:
        reason = report.read() or explained(error)
        if reason is None:
            raise
        raise reason from error
    say("stopped")


async def _serve(options: ServerOptions, start_s: float) -> None:
    """What vLLM's ``run_server`` does, with signals that are not lost while the engine starts."""
    from vllm.entrypoints.launchers.api_server.entry import run_server_worker
    from vllm.entrypoints.launchers.launcher import setup_server

    # vLLM replaces them once it accepts connections.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, give_up)
    stops = _Stops(asyncio.get_running_loop())
    address, listening = setup_server(options.arguments, reuse_port=False)
    # Else the port would be taken, and connections to it without an answer, while an engine lives.
    multiprocessing.util.register_after_fork(listening, lambda inherited: inherited.close())
    told = asyncio.create_task(_tell_when_ready(options, start_s))
    try:
        await run_server_worker(address, listening, options.arguments)
    except (RuntimeError, asyncio.CancelledError) as error:  # of requests that were given up
        if told.done() and not stops.asked:
            raise GaplessError(_ENDED) from error
        raise
    finally:
        told.cancel()
    if not stops.asked:
        raise GaplessError(_ENDED)


class _Stops:
    """Notes the signals that vLLM's server is stopped by, which it handles itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked: list[int] = []
        self._add = loop.add_signal_handler
        loop.add_signal_handler = self._noting  # type: ignore[assignment]
        # That the engine is gone is no error then.
        logging.getLogger("vllm.v1.engine.async_llm").addFilter(lambda _: not self.asked)

    def _noting(self, number: int, call: Callable[..., Any], *arguments: Any) -> None:
        def handler() -> None:
            self.asked.append(number)
            start_draining()
            call(*arguments)

        self._add(number, handler)


def give_up(number: int, _: object) -> None:
    """End at once, with the engine, which has answered nobody yet.

    An exception would get lost: who waits for the engine takes some for its own.
    """
    from gapless.cache.own_folder import remove_own_folders

    for engine in multiprocessing.active_children():
        engine.kill()
        engine.join()
    remove_own_folders()
    say("stopped before it was ready")
    os._exit(128 + number)


async def _tell_when_ready(options: ServerOptions, start_s: float) -> None:
    """Say where to reach the server once it accepts connections."""
    arguments = options.arguments
    while True:
        await asyncio.sleep(_POLL_S)
        try:
            if arguments.uds:
                _, writer = await asyncio.open_unix_connection(arguments.uds)
            else:
                host = _ANY_HOST.get(arguments.host, arguments.host)
                _, writer = await asyncio.open_connection(host, arguments.port)
        except OSError:
            continue
        writer.close()
        break
    scheme = "https" if arguments.ssl_certfile else "http"
    address = arguments.uds or f"{scheme}://{_in_url(arguments.host)}:{arguments.port}/v1"
    say(f"serving {options.name} on {address}, ready after {time.monotonic() - start_s:.1f} s")


def _in_url(host: str | None) -> str:
    return f"[{host}]" if host and ":" in host else host or "0.0.0.0"


def say(text: str) -> None:
    """One line on standard error."""
    print(f"gapless: {text}", file=sys.stderr, flush=True)
