"""``gapless doctor``: what is there, and what would go wrong."""

import json
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from gapless.cli import checks
from gapless.cli.diagnosis import Diagnosis, Section

CHECKS: tuple[Callable[[], Section], ...] = (
    checks.check_device,
    checks.check_cores,
    checks.check_threads,
    checks.check_memory,
    checks.check_processor,
    checks.check_packages,
    checks.check_cache,
    checks.check_environment,
)


def doctor(
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the findings as JSON for machines.")
    ] = False,
) -> None:
    """Say which device, cores, memory and packages are there, and what would go wrong."""
    raise typer.Exit(run(json_output))


def run(json_output: bool) -> int:
    """Print the diagnosis; 1 if something would fail, else 0."""
    diagnosis = diagnose(CHECKS)
    if json_output:
        print(json.dumps(diagnosis.as_json(), indent=2))
    else:
        print_diagnosis(diagnosis)
    return 0 if diagnosis.is_ok else 1


def diagnose(all_checks: Sequence[Callable[[], Section]]) -> Diagnosis:
    """Run the checks; one that fails itself is a problem, and the others still run."""
    sections = []
    for check in all_checks:
        try:
            sections.append(check())
        except Exception as error:  # a machine too strange to be looked at is still worth a report
            section = Section(check.__name__.removeprefix("check_"))
            first_line = (str(error).strip() or "no message").splitlines()[0]
            section.problem(
                f"looking at the {section.title} failed: {type(error).__name__}: {first_line}",
                "reinstall gapless, and if that does not help, report this line",
                fails=True,
            )
            sections.append(section)
    return Diagnosis(tuple(sections))


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Print the facts as one table per section, then the problems."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(soft_wrap=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for section in diagnosis.sections:
        for number, fact in enumerate(section.facts):
            title = "" if number else section.title
            name = fact.name.removesuffix("_bytes").replace("_", " ")
            table.add_row(title, fact.name if fact.name.isupper() else name, Text(fact.shown))
    console.print(table)
    console.print()
    for problem in diagnosis.problems:
        word = Text("fails: ", "bold red") if problem.fails else Text("note:  ", "bold yellow")
        console.print(word + Text(str(problem), "default"))
    if not diagnosis.problems:
        console.print("nothing to complain about")
