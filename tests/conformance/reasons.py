"""Which failures are known, and why: ``reasons.toml``."""

import fnmatch
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("reasons.toml")


@dataclass(frozen=True)
class Reason:
    """A known failure: patterns of operator and ``check.dtype``, and its cause."""

    operator: str
    check: str
    cause: str
    sometimes: bool = False  # a run without it is no news

    def covers(self, operator: str, check: str) -> bool:
        """Whether the failure of ``check`` (such as ``grad.float32``) is this one."""
        return fnmatch.fnmatchcase(operator, self.operator) and fnmatch.fnmatchcase(
            check, self.check
        )


def load(path: Path = PATH) -> list[Reason]:
    """The reasons in the file; ``ValueError`` for one without a cause."""
    with path.open("rb") as file:
        entries = tomllib.load(file).get("reason", [])
    reasons = []
    for entry in entries:
        if not entry.get("cause", "").strip():
            raise ValueError(f"{path}: {entry.get('operators')} has no cause")
        for operator in entry["operators"]:
            reasons.append(
                Reason(
                    operator,
                    entry.get("check", "*"),
                    entry["cause"].strip(),
                    entry.get("sometimes", False),
                )
            )
    return reasons


def failures_of(result: dict[str, Any]) -> dict[str, str]:
    """The failed checks of an operator, as ``check.dtype``, each with its first error."""
    if "died" in result:
        return {"process": result["died"]}
    return {
        f"{outcome['check']}.{outcome['dtype']}": outcome["failures"][0]
        for outcome in result["outcomes"]
        if outcome["failures"]
    }


def unexplained(results: list[dict[str, Any]], reasons: list[Reason]) -> list[str]:
    """Failures that no reason covers."""
    found = []
    for result in results:
        name = result["operator"]
        for check, error in failures_of(result).items():
            if not any(reason.covers(name, check) for reason in reasons):
                found.append(f"{name} {check}: {error}")
    return sorted(found)


def stale(results: list[dict[str, Any]], reasons: list[Reason]) -> list[str]:
    """Reasons whose operators were tried and do not fail."""
    found = []
    for reason in reasons:
        if reason.sometimes:
            continue
        tried = [r for r in results if fnmatch.fnmatchcase(r["operator"], reason.operator)]
        fails = any(
            reason.covers(result["operator"], check)
            for result in tried
            for check in failures_of(result)
        )
        if tried and not fails:
            found.append(f"{reason.operator} {reason.check}: {reason.cause}")
    return found
