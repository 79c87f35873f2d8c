"""What a run of the matrix gives: a result for each target and tier; the form of matrix.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..util import serde

# A tier that fails stops the ones after it. The letter is what --to takes.
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
    "b": "patches apply and every list edit finds its anchor",
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
    """Why a tier failed, and how to fix it.

    kind: one of findings.KINDS ('landed upstream', 'anchor gone', ...).
    what, where, why, next, exit_code: as the error has them.
    """

    kind: str
    advice: str
    what: str
    where: str
    why: str
    next: str
    exit_code: int


@dataclass(frozen=True)
class Row:
    """A part of a result with a state of its own: a patch, a list, an operator."""

    name: str
    state: str
    text: str


@dataclass(frozen=True)
class TierResult:
    """How one tier ended for one target."""

    tier: str
    state: str
    seconds: float = 0.0
    outcome: str = ""  # one line: what the tier did, or why it did nothing
    finding: Finding | None = None
    log: str = ""
    rows: tuple[Row, ...] = ()
    others: tuple[Finding, ...] = ()  # what else failed in the same tier

    @property
    def red(self) -> bool:
        """Whether this tier failed."""
        return self.state == FAILED

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that failed in this tier."""
        return (self.finding, *self.others) if self.finding else ()


@dataclass(frozen=True)
class Wrapper:
    """The text that a release's packaging puts around installed headers."""

    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class Facts:
    """What of an upstream may concern additions and changes from release to release."""

    operators: int
    tags: tuple[str, ...]
    dispatch_keys: tuple[str, ...]
    touched: Mapping[str, str]  # upstream's operators that the additions call: name → schema
    templates: Mapping[str, str]  # code generator templates: path → digest
    validations: tuple[str, ...]  # what the code generator refuses: 'file: assert …'
    identity: str
    wrapper: Wrapper | None = None  # known from tier (d) on
    needed: tuple[str, ...] | None = None  # signatures that the compiled additions call


@dataclass(frozen=True)
class Changes:
    """What changed upstream since another release; lines for each of compare.SECTIONS with any."""

    since: str
    operators: int
    sections: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class TargetResult:
    """All tiers of one target, and the facts of its upstream."""

    name: str  # '2.15.0'
    version: str  # torch.__version__ of the base, '' where it could not be opened
    commit: str
    base: str  # the wheel's file name, 'git ref main', a directory
    tiers: tuple[TierResult, ...]
    operators: tuple[Row, ...] = ()  # one for each added operator
    facts: Facts | None = None
    changes: Changes | None = None  # since the target before it
    cached: bool = False

    @property
    def red(self) -> bool:
        """Whether any tier failed."""
        return any(tier.red for tier in self.tiers)

    @property
    def first_failure(self) -> TierResult | None:
        """The tier that stopped it."""
        return next((tier for tier in self.tiers if tier.red), None)

    def tier(self, letter: str) -> TierResult | None:
        """One of its tiers."""
        return next((tier for tier in self.tiers if tier.tier == letter), None)


@dataclass(frozen=True)
class Matrix:
    """One run over all targets."""

    additions: str
    operators: tuple[str, ...]
    tiers: str  # the letters that were asked for
    made: str  # UTC, ISO 8601
    seconds: float
    targets: tuple[TargetResult, ...]

    @property
    def failed(self) -> list[TargetResult]:
        """The targets that some tier failed on."""
        return [target for target in self.targets if target.red]

    @property
    def red(self) -> bool:
        """Whether any target failed."""
        return bool(self.failed)

    def to_json(self) -> dict[str, object]:
        """The form of matrix.json."""
        plain = serde.dump(self)
        assert isinstance(plain, dict)
        subjects = [
            {**target, "facts": target["facts"] or {}, "changes": target["changes"] or {}}
            for target in plain.pop("targets")
        ]
        return {**plain, "subjects": subjects, "red": self.red, "format": 1}
