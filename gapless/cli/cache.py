"""``gapless cache``: what is kept on disk between runs."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gapless.cache.inventory import Entry

KindOption = Annotated[
    str | None, typer.Option("--kind", help="Only these: model or program; by default both.")
]
Names = Annotated[
    list[str] | None, typer.Argument(help="Names of entries, or how they begin; by default all.")
]


def list_entries(
    kind: KindOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List converted models and compiled programs, with size, age and origin."""
    from gapless.cache import cache_root
    from gapless.cli.status import stdout_console

    found = _selected(None, kind)
    if as_json:
        print(json.dumps([{**asdict(each), "path": str(each.path)} for each in found], indent=2))
        return
    from rich.table import Table
    from rich.text import Text

    console = stdout_console()
    if not found:
        console.print(f"nothing in {cache_root()}", markup=False, soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False)
    rows = [(each.kind, each.name, f"{each.size_bytes / 1e6:.1f}", _age(each)) for each in found]
    # A line for each entry: what one was made from is cut off where there is no room. A program has
    # many operands, and --json has them all.
    heads = ("kind", "name", "MB", "used")
    columns = zip(heads, *rows, strict=True)
    room = console.width - sum(max(map(len, cells)) + 2 for cells in columns)
    for column in (*heads, "from"):
        table.add_column(column, justify="right" if column == "MB" else "left", no_wrap=True)
    for row, each in zip(rows, found, strict=True):
        made_from = Text(_from(each))
        made_from.truncate(max(room, 20), overflow="ellipsis")
        table.add_row(*row, made_from)
    console.print(table)
    total = sum(each.size_bytes for each in found)
    console.print(
        f"{len(found)} entries, {total / 1e6:.1f} MB in {cache_root()}",
        markup=False,
        soft_wrap=True,
    )


def verify(names: Names = None, kind: KindOption = None) -> None:
    """Read every entry and check it against its checksums; exits with 1 if one is broken.

    A broken entry is never used: it is built again when it is needed.
    """
    from gapless.cache.inventory import trouble_with

    broken = 0
    found = _selected(names, kind)
    for each in found:
        trouble = trouble_with(each)
        broken += trouble is not None
        print(f"{each.kind} {each.name}: {trouble or 'whole'}")
    print(f"{len(found)} entries, {broken} broken")
    if broken:
        raise typer.Exit(1)


def clear(
    names: Names = None,
    kind: KindOption = None,
    is_sure: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove entries; what is needed again is built again."""
    from gapless.cache.inventory import remove
    from gapless.errors import UsageError

    found = _selected(names, kind)
    size = sum(each.size_bytes for each in found)
    what = f"{len(found)} entries, {size / 1e6:.1f} MB"
    if found and not is_sure:
        if not sys.stdin.isatty():
            raise UsageError(f"this would remove {what}; say --yes")
        if not typer.confirm(f"remove {what}?"):
            raise typer.Exit(1)
    kept = [each for each in found if not remove(each)]
    for each in kept:
        print(f"{each.kind} {each.name}: kept, another process is building it")
    print(f"removed {len(found) - len(kept)} entries")


def warm(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="A Python program that calls what it compiles.")],
) -> None:
    """Run a program with every compilation waited for, so that a later run finds all it needs.

    What follows the program's name is its own. Afterwards it runs with GAPLESS_COMPILE=never too.
    """
    import os
    import subprocess

    from gapless.compile.mode import MODE_VARIABLE, CompileMode

    before = {each.name for each in _selected(None, "program")}
    environment = {**os.environ, MODE_VARIABLE: CompileMode.WAIT.value}
    done = subprocess.run([sys.executable, script, *context.args], env=environment, check=False)
    after = _selected(None, "program")
    made = [each for each in after if each.name not in before]
    size = sum(each.size_bytes for each in made)
    print(
        f"gapless: {len(made)} programs were compiled, {size / 1e6:.1f} MB; the cache has "
        f"{len(after)}",
        file=sys.stderr,
    )
    if done.returncode:
        raise typer.Exit(done.returncode if done.returncode > 0 else 128 - done.returncode)


def build_cache_app() -> typer.Typer:
    """``gapless cache`` with its commands."""
    from gapless.cli.errors import reported

    app = typer.Typer(no_args_is_help=True, help="What is kept on disk between runs.")
    app.command("list")(reported(list_entries))
    app.command()(reported(verify))
    app.command()(reported(clear))
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
        reported(warm)
    )
    return app


def _selected(names: list[str] | None, kind: str | None) -> list[Entry]:
    from gapless.cache.inventory import KINDS, entries, select
    from gapless.errors import UsageError

    if kind is not None and kind not in KINDS:
        raise UsageError(f"--kind {kind} is not one of {', '.join(KINDS)}")
    return select(entries(), names or [], kind)


def _age(entry: Entry) -> str:
    seconds = max(0.0, time.time() - entry.used_s)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "now"


def _from(entry: Entry) -> str:
    source = entry.source
    if not source:
        return "unknown: its manifest cannot be read"
    return source.get("operands") or source.get("package") or ", ".join(source.values())
