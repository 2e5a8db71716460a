"""Two folders of recordings side by side."""

from dataclasses import dataclass

from gapless.profile.summary import RunSummary, Summary


@dataclass(frozen=True)
class Figure:
    """One figure of two runs; ``change_percent`` is None where the first is 0 or one is missing."""

    name: str
    unit: str
    first: float | None
    second: float | None

    @property
    def change_percent(self) -> float | None:
        """By how much the second differs from the first."""
        if not self.first or self.second is None:
            return None
        return 100.0 * (self.second - self.first) / self.first


@dataclass(frozen=True)
class PairOfRuns:
    """The runs that correspond to each other, by their place in their folders."""

    first_label: str
    second_label: str
    figures: tuple[Figure, ...]
    causes: tuple[Figure, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """All pairs of runs, and remarks on what has no counterpart."""

    pairs: tuple[PairOfRuns, ...]
    notes: tuple[str, ...]


def compare(first: Summary, second: Summary) -> Comparison:
    """Put the runs of two folders side by side: the first with the first, and so on."""
    pairs = tuple(
        _pair((mine[0].label, mine[2]), (theirs[0].label, theirs[2]))
        for mine, theirs in zip(first.runs, second.runs, strict=False)
    )
    notes = []
    counts = len(first.runs), len(second.runs)
    if counts[0] != counts[1]:
        notes.append(
            f"the first has {counts[0]} runs of steps and the second {counts[1]}; the first "
            f"{min(counts)} of each are compared"
        )
    for name, summary in (("first", first), ("second", second)):
        notes.extend(f"the {name}: {note}" for note in summary.notes)
    return Comparison(pairs, tuple(notes))


def _pair(mine: tuple[str, RunSummary], theirs: tuple[str, RunSummary]) -> PairOfRuns:
    first, second = mine[1], theirs[1]
    notes = []
    if first.steps.steps != second.steps.steps:
        notes.append(
            f"{first.steps.steps} steps against {second.steps.steps}: compare what is per step or "
            "per second, not totals"
        )
    return PairOfRuns(
        first_label=mine[0],
        second_label=theirs[0],
        figures=tuple(
            Figure(name, unit, one, other)
            for (name, unit, one), (_, _, other) in zip(
                _figures(first), _figures(second), strict=True
            )
        ),
        causes=tuple(_causes(first, second)),
        notes=tuple(notes),
    )


def _figures(run: RunSummary) -> list[tuple[str, str, float | None]]:
    steps, idle = run.steps, run.idle
    return [
        ("steps", "", float(steps.steps)),
        ("step time p50", "us", steps.step_p50_us),
        ("step time p99", "us", steps.step_p99_us),
        ("period p50", "us", steps.period_p50_us),
        ("period p99", "us", steps.period_p99_us),
        ("steps per second", "", run.steps_per_s),
        ("tokens per second", "", run.tokens_per_s),
        ("busy", "%", steps.busy_percent),
        ("idle gap p50", "us", idle.p50_us),
        ("idle gap p99", "us", idle.p99_us),
        ("idle gap max", "us", idle.max_us),
        ("idle per step", "us", idle.total_us / steps.steps),
        ("idle total", "us", idle.total_us),
    ]


def _causes(first: RunSummary, second: RunSummary) -> list[Figure]:
    """Idle time per step by its cause, the costliest of either first."""
    tables = [
        {cause.name: cause.total_us / run.steps.steps for cause in run.idle.causes}
        for run in (first, second)
    ]
    names = dict.fromkeys([*tables[0], *tables[1]])
    rows = [Figure(name, "us", *(table.get(name, 0.0) for table in tables)) for name in names]
    return sorted(rows, key=lambda row: -max(row.first or 0.0, row.second or 0.0))
