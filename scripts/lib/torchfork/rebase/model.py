"""What a run of the matrix found: a result for each subject and tier, as JSON has it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

# Each tier stops the ones after it. The letter is what --to takes.
TIERS = {
    "a": "merge",
    "b": "patches",
    "c": "codegen",
    "d": "compile",
    "e": "link",
    "f": "run",
}
TITLES = {
    "a": "YAML merges, no name or schema collides, the code generator can be driven",
    "b": "patches apply and every hook finds its place",
    "c": "all generated files of the additions are made",
    "d": "upstream's headers regenerate, everything compiles, declared kernels are defined",
    "e": "the two libraries link",
    "f": "the wheel installs, imports and passes its tests",
}

PASSED, FAILED, NOT_REACHED, NOT_ASKED, IMPOSSIBLE = (
    "passed", "failed", "not reached", "not asked", "not possible",
)  # fmt: skip
NOT_NEEDED = "not needed"  # of a part of a tier


@dataclass(frozen=True)
class Finding:
    """Why a tier failed, and what a person has to do about it.

    kind: one of findings.KINDS ('landed upstream', 'anchor gone', ...).
    what, where, why, next, exit_code: as the error says them.
    """

    kind: str
    advice: str
    what: str
    where: str
    why: str
    next: str
    exit_code: int


@dataclass(frozen=True)
class TierResult:
    """How one tier ended for one subject."""

    tier: str
    state: str
    seconds: float = 0.0
    outcome: str = ""  # one line: what was seen, or why there is nothing to see
    finding: Finding | None = None
    log: str = ""
    rows: tuple[dict[str, str], ...] = ()  # parts with states of their own: {name, state, text}

    @property
    def red(self) -> bool:
        """Whether a person has to do something."""
        return self.state == FAILED


@dataclass(frozen=True)
class SubjectResult:
    """All tiers of one subject, and what its upstream is like."""

    name: str  # '2.15.0'
    version: str  # torch.__version__ of the base, '' where it could not be opened
    commit: str
    base: str  # what the base was: the wheel's file name, 'git ref main', a directory
    tiers: tuple[TierResult, ...]
    operators: tuple[dict[str, str], ...] = ()  # {name, state, text}, one for each added operator
    facts: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)  # since the subject before it
    cached: bool = False

    @property
    def red(self) -> bool:
        """Whether any tier failed."""
        return any(tier.red for tier in self.tiers)

    @property
    def seconds(self) -> float:
        """What its tiers took when they were run."""
        return sum(tier.seconds for tier in self.tiers)

    @property
    def first_failure(self) -> TierResult | None:
        """The tier that stopped it."""
        return next((tier for tier in self.tiers if tier.red), None)


@dataclass(frozen=True)
class Matrix:
    """One run over all subjects."""

    additions: str
    operators: tuple[str, ...]
    tiers: str  # the letters that were asked for
    made: str  # UTC, ISO 8601
    seconds: float
    subjects: tuple[SubjectResult, ...]

    @property
    def red(self) -> bool:
        """Whether anything needs a person."""
        return any(subject.red for subject in self.subjects)

    def to_json(self) -> dict[str, Any]:
        """Plain values, as the report's JSON has them."""
        return {**asdict(self), "red": self.red, "format": 1}


def subject_to_json(result: SubjectResult) -> dict[str, Any]:
    """A subject's result as plain values."""
    return asdict(result)


def subject_from_json(data: dict[str, Any]) -> SubjectResult:
    """The inverse of subject_to_json."""
    tiers = tuple(
        TierResult(
            **{
                **tier,
                "finding": Finding(**tier["finding"]) if tier["finding"] else None,
                "rows": tuple(tier["rows"]),
            }
        )
        for tier in data["tiers"]
    )
    return SubjectResult(**{**data, "tiers": tiers, "operators": tuple(data["operators"])})
