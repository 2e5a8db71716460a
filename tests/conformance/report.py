"""The table of a run."""

from collections import Counter
from typing import Any

from .reasons import failures_of

CHECKS = ("forward", "noncontiguous", "out", "inplace", "grad")


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Numbers of operators: tried, passed, failed, refused; in all and per check."""
    rows: dict[str, Counter[str]] = {name: Counter() for name in (*CHECKS, "all")}
    samples = random = 0
    for result in results:
        if not any(o["tried"] for o in result["outcomes"]) and "died" not in result:
            rows["all"]["without samples"] += 1
            continue
        rows["all"]["tried"] += 1
        rows["all"][_verdict(result["outcomes"], "died" in result)] += 1
        for check in CHECKS:
            mine = [o for o in result["outcomes"] if o["check"] == check and o["tried"]]
            if mine:
                rows[check]["tried"] += 1
                rows[check][_verdict(mine, False)] += 1
        samples += sum(outcome["tried"] for outcome in result["outcomes"])
        random += any(outcome["random"] for outcome in result["outcomes"])
    tried = rows["all"]["tried"]
    return {
        "rows": {name: dict(row) for name, row in rows.items()},
        "samples": samples,
        "operators with random numbers": random,
        "asynchronous": sum(1 for r in results if r["outcomes"] and not _waits(r["departures"])),
        "passed_percent": round(100 * rows["all"]["passed"] / tried, 2) if tried else 0.0,
    }


def _verdict(outcomes: list[dict[str, Any]], died: bool) -> str:
    failed = [outcome for outcome in outcomes if outcome["failures"]]
    if not failed and not died:
        return "passed"
    return "refused" if failed and all(o["refused"] for o in failed) and not died else "failed"


def _waits(departures: dict[str, str]) -> bool:
    """Whether anything but the comparison's own copies waited."""
    return any(not operation.startswith("copy ") for operation in departures)


def table(numbers: dict[str, Any]) -> str:
    """The summary as text of 80 columns."""
    lines = [f"{'check':<15}{'tried':>8}{'passed':>8}{'failed':>8}{'refused':>9}"]
    for name, row in numbers["rows"].items():
        lines.append(
            f"{name:<15}{row.get('tried', 0):>8}{row.get('passed', 0):>8}"
            f"{row.get('failed', 0):>8}{row.get('refused', 0):>9}"
        )
    lines.append(
        f"{numbers['passed_percent']:.2f} % of the operators passed every check with every dtype: "
        f"{numbers['samples']} calls"
    )
    lines.append(
        f"{numbers['asynchronous']} operators never waited; "
        f"{numbers['operators with random numbers']} do not repeat themselves on the CPU either "
        "(random numbers: only shapes, dtypes and means are compared; LAPACK: not the last bits)"
    )
    return "\n".join(lines)


def line(result: dict[str, Any]) -> str:
    """One operator's outcome in one line."""
    failures = failures_of(result)
    if failures:
        return f"{result['operator']}: " + "; ".join(f"{c}: {e}" for c, e in failures.items())
    calls = sum(outcome["tried"] for outcome in result["outcomes"])
    return f"{result['operator']}: passed, {calls} calls"
