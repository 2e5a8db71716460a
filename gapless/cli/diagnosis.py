"""What the doctor found: facts by section, and problems with their remedies."""

from dataclasses import asdict, dataclass, field
from typing import Any

Value = bool | int | float | str | None | tuple[int, ...]


@dataclass(frozen=True)
class Fact:
    """One thing that is so: its value for machines, and as it is shown to people."""

    name: str
    value: Value
    shown: str


@dataclass(frozen=True)
class Problem:
    """What is wrong, in one line with the value and the limit, and what to do about it.

    ``remedy`` is empty where ``what`` tells it already.
    ``fails`` tells whether something will not work at all.
    """

    what: str
    remedy: str = ""
    fails: bool = False

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


@dataclass
class Section:
    """Facts and problems of one subject."""

    title: str
    facts: list[Fact] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def fact(self, name: str, value: Value, shown: str | None = None) -> None:
        """Add a fact, shown as its value unless told otherwise."""
        self.facts.append(Fact(name, value, _shown(value) if shown is None else shown))

    def problem(self, what: str, remedy: str = "", *, fails: bool = False) -> None:
        """Add a problem."""
        self.problems.append(Problem(what, remedy, fails))


@dataclass(frozen=True)
class Diagnosis:
    """Everything that the doctor found."""

    sections: tuple[Section, ...]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All problems, each once, those that make something fail first."""
        found = [problem for section in self.sections for problem in section.problems]
        return tuple(sorted(dict.fromkeys(found), key=lambda problem: not problem.fails))

    @property
    def is_ok(self) -> bool:
        """Whether nothing will fail."""
        return not any(problem.fails for problem in self.problems)

    def as_json(self) -> dict[str, Any]:
        """The diagnosis as ``json.dumps`` takes it."""
        return {
            "ok": self.is_ok,
            "facts": {
                section.title: {fact.name: fact.value for fact in section.facts}
                for section in self.sections
            },
            "problems": [asdict(problem) for problem in self.problems],
        }


def _shown(value: Value) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)
