"""The demo with a server: the same questions with and without asynchronous scheduling."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gapless.cli.in_process_demo import PROMPTS
from gapless.cli.serve_load import Answer, LoadFigures, ask, ask_all, connect, figures, margin
from gapless.cli.server_process import ServerProcess
from gapless.profile.environment import ENABLE, OUTPUT_DIR

if TYPE_CHECKING:
    from rich.console import Console

    from gapless.profile import IdleReport, Timeline

SYNCHRONOUS, ASYNCHRONOUS = "synchronous", "asynchronous"
_FLAGS = {SYNCHRONOUS: "--no-async-scheduling", ASYNCHRONOUS: "--async-scheduling"}
_CACHE = "1G"
_WARMUP_TOKENS = 4
# A batch is put together as requests happen to arrive, and its size decides how kernels round.
# Where two tokens are this near to each other, in natural logarithms, rounding may choose.
_NEAR_TIE = {"float32": 1e-3, "float16": 3e-2, "bfloat16": 2.5e-1}


@dataclass(frozen=True)
class Difference:
    """Where an answer first differs between the modes; ``margin`` is None where it is unknown."""

    batch: int
    question: int
    position: int
    synchronous: int | None
    asynchronous: int | None
    margin: float | None
    is_near_tie: bool


@dataclass(frozen=True)
class ServeRow:
    """One load in one mode; ``idle`` is None where the recording holds no steps of it."""

    mode: str
    load: LoadFigures
    idle: IdleReport | None
    timeline: Timeline | None


@dataclass(frozen=True)
class ServeReport:
    """All loads of a demo."""

    model: str
    dtype: str
    ready_s: dict[str, float]
    rows: tuple[ServeRow, ...]
    differences: tuple[Difference, ...]
    trace: Path | None

    @property
    def identical(self) -> bool:
        """Whether no token differs, near ties left out."""
        return all(found.is_near_tie for found in self.differences)


@dataclass(frozen=True)
class _Asked:
    """What one server answered, one question alone and then all at once."""

    loads: tuple[tuple[Answer, ...], ...]
    differences: tuple[Difference, ...]


def run_demo(
    console: Console, max_tokens: int, trace: Path, model: Path | None, dtype: str
) -> ServeReport:
    """Serve in both modes and write the trace.

    Raises:
        GaplessError: the server does not start, or does not stop.
    """
    from gapless.cli.status import working

    arguments = [] if model is None else [str(model)]
    arguments += ["--dtype", dtype, "--kv-cache-memory-bytes", _CACHE]
    arguments += ["--max-num-seqs", str(len(PROMPTS))]
    rows: list[ServeRow] = []
    ready_s: dict[str, float] = {}
    asked: dict[str, _Asked] = {}
    name = found_dtype = ""
    with tempfile.TemporaryDirectory(prefix="gapless-demo-") as folder:
        for mode in (SYNCHRONOUS, ASYNCHRONOUS):
            recordings = Path(folder) / mode
            environment = {ENABLE: "1", OUTPUT_DIR: str(recordings)}
            with working(console, f"{mode}: starting a server") as notify:
                server = ServerProcess([*arguments, _FLAGS[mode]], environment, notify)
                server.wait_until_ready()
            try:
                name, found_dtype, ready_s[mode] = server.model, server.dtype, server.ready_s
                console.print(
                    f"{mode}: {name} in {found_dtype} ({server.why}), ready after "
                    f"{server.ready_s:.1f} s",
                    style="dim",
                    markup=False,
                    soft_wrap=True,
                )
                before = asked.get(SYNCHRONOUS)
                asked[mode] = asyncio.run(_talk(server, max_tokens, before, mode == ASYNCHRONOUS))
            finally:
                with working(console, f"{mode}: stopping the server"):
                    server.stop()
            recording = _engine(recordings)
            rows += [_row(mode, answers, recording) for answers in asked[mode].loads]
    return ServeReport(
        model=name,
        dtype=found_dtype,
        ready_s=ready_s,
        rows=tuple(sorted(rows, key=lambda row: row.load.requests)),
        differences=asked[ASYNCHRONOUS].differences,
        trace=_write(rows, trace),
    )


async def _talk(
    server: ServerProcess, max_tokens: int, before: _Asked | None, is_shown: bool
) -> _Asked:
    """Ask one question, then all, and compare with what the other server answered."""
    show = _to_stdout if is_shown else None
    async with connect(server.url) as client:
        await ask_all(client, server.model, PROMPTS, _WARMUP_TOKENS)
        if show is not None:
            print(f"\n> {PROMPTS[0]}\n")
        alone = await ask(client, server.model, PROMPTS[0], max_tokens, show=show)
        if show is not None:
            print("\n")
        together = await ask_all(client, server.model, PROMPTS, max_tokens)
        loads = ((alone,), together)
        found = []
        for mine, theirs in zip(loads, before.loads if before else (), strict=False):
            for number, pair in enumerate(zip(mine, theirs, strict=True)):
                if (position := _first_difference(*pair)) is None:
                    continue
                answer, other = pair
                prefix = answer.prompt_tokens + answer.tokens[:position]
                lead = await margin(client, server.model, prefix) if prefix else None
                found.append(
                    Difference(
                        batch=len(mine),
                        question=number,
                        position=position,
                        synchronous=_at(other.tokens, position),
                        asynchronous=_at(answer.tokens, position),
                        margin=lead,
                        is_near_tie=lead is not None and lead <= _NEAR_TIE[server.dtype],
                    )
                )
        return _Asked(loads, tuple(found))


def _first_difference(one: Answer, other: Answer) -> int | None:
    for position in range(max(len(one.tokens), len(other.tokens))):
        if _at(one.tokens, position) != _at(other.tokens, position):
            return position
    return None


def _at(tokens: tuple[int, ...], position: int) -> int | None:
    return tokens[position] if position < len(tokens) else None


def _to_stdout(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _engine(folder: Path) -> Timeline | None:
    """The recording of the process that used a device; None where there is none."""
    from gapless.errors import UsageError
    from gapless.profile.recording_folder import load_folder

    try:
        found = load_folder(folder)
    except UsageError:  # nothing was recorded
        return None
    return next((each.timeline for each in found if each.timeline.devices), None)


def _row(mode: str, answers: tuple[Answer, ...], recording: Timeline | None) -> ServeRow:
    from gapless.profile import TimelineError, analyse

    load = figures(answers)
    if recording is None:
        return ServeRow(mode, load, None, None)
    start_ns, end_ns = recording.column("start_ns"), recording.column("end_ns")
    inside = (start_ns >= load.start_ns) & (end_ns <= load.end_ns)
    part = replace(
        recording,
        work=recording.work[inside],
        process_name=f"{mode}, {load.requests} at once",
    )
    try:
        return ServeRow(mode, load, analyse(part), part)
    except TimelineError:  # no steps in it
        return ServeRow(mode, load, None, part)


def _write(rows: list[ServeRow], path: Path) -> Path | None:
    timelines = [row.timeline for row in rows if row.timeline is not None]
    if not timelines:
        return None
    from gapless.profile import write_trace

    write_trace(path, timelines)
    return path
