"""What a run of the matrix gives: results, causes of failures and their cures, matrix.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .. import errors
from ..codegen.header_check import Wrapper
from ..errors import CompileError, ForkError
from ..util import memo

# A tier that fails stops the ones after it. The letter is what --to takes.
TIERS = {"a": "merge", "b": "patches", "c": "codegen", "d": "compile", "e": "link", "f": "run"}
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


# The kind of an error that does not name its own.
BY_CLASS: dict[type[ForkError], str] = {
    errors.CollisionError: "name taken upstream",
    errors.DerivativeError: "derivative refused",
    errors.AdditionsError: "entry refused",
    errors.KernelError: "kernel missing",
    errors.CompileError: "does not compile",
    errors.ToolkitMismatchError: "tool missing",
    errors.ToolMissingError: "tool missing",
    errors.UnknownReleaseError: "not available",
    errors.DownloadError: "not available",
    errors.HashMismatchError: "not available",
    errors.OutputError: "cannot be written",
    errors.BaseRefusedError: "base refused",
    errors.VerificationError: "does not run",
    errors.InternalError: "internal error",
}

# Each kind, and how to fix it; {release} is the target's name.
KINDS = {
    "landed upstream": "torch {release} has this operator itself. Limit the entry to releases "
    'before it (torch: "<{release}" beside func, and beside name in the formula), or delete it '
    "with its kernels, and run the operator's tests on upstream's.",
    "name taken upstream": "torch {release} has another operator of this name. Rename yours, or "
    "give it an overload name of its own.",
    "ambiguous overload": "torch {release} has an overload with the same argument types. Change "
    "a type or the number of arguments, or rename yours.",
    "tag gone": "torch {release} has no such tag. Its tags.yaml has what replaced it.",
    "dispatch key gone": "torch {release} has no such dispatch key. Its DispatchKey.h has what "
    "replaced it; an entry with another range (torch: …) can do without it.",
    "code generator changed": "torch {release} renamed or changed what torchfork calls. Adapt "
    "codegen/driver.py; it must keep working with releases before it.",
    "code generator fails": "torch {release}'s generator fails on its own YAML. The tree is "
    "broken or incomplete: try another commit.",
    "entry refused": "torch {release} refuses the entry. Change it so that every release accepts "
    "it.",
    "derivative refused": "torch {release} refuses the derivative formula. Write it in a form "
    "that every release accepts.",
    "new validation": "torch {release} refuses what earlier releases accept: its generator "
    "validates more, or its syntax changed. Change the entry so that every release accepts it.",
    "anchor gone": "torch {release} has no line that this list edit could be placed at. Find where "
    "the list went, and give the edit an anchor that exists in every release (torchfork/edits).",
    "anchor doubled": "torch {release} has several lines that this list edit could be placed at. "
    "Make the edit's pattern match the right one alone (torchfork/edits).",
    "patch landed upstream": "torch {release} has what this patch does. End its range before that "
    "release in patches/series, or drop it when no older release is wanted.",
    "patch needs refresh": "torch {release} changed lines around the patch, and it merges. "
    "Refresh the patch, so that it applies to the next release, too.",
    "patch conflicts": "resolve the patch once on torch {release} and refresh it with the "
    "command under 'next'.",
    "template changed": "torch {release} changed a codegen template, and the graft cannot read it. "
    "Compare the template with the release before, and adapt codegen/templates.py.",
    "headers differ": "torch {release}'s YAML does not regenerate its own headers. A release: its "
    "packaging changed, adapt codegen/header_check.py. Another wheel: somebody edited it.",
    "does not compile": "torch {release} changed something that the kernels or the generated code "
    "use; the compiler's first error is under 'why'.",
    "symbol hidden": "torch {release} no longer exports a function that the additions call. Call "
    "a public at:: function, or carry the helper yourself.",
    "symbol of upstream": "torch {release} defines a function of this name too. Rename yours, or "
    "put it into an anonymous namespace.",
    "header gone": "torch {release} has moved or dropped a header that a source includes. Include "
    "what it has, behind __has_include where releases differ.",
    "foreign library": "no release takes a registration in a library of an extension's own. Delete "
    "it: the YAML declares and registers the operators.",
    "kernel missing": "torch {release}'s generated code asks for a kernel that the additions do "
    "not define: its signature changed, or the schema means another one now.",
    "does not link": "a library that the graft links against changed in torch {release}.",
    "does not run": "the wheel builds on torch {release} and fails its verification.",
    "tests fail": "the operators behave differently on torch {release}; the failed tests are in "
    "the log.",
    "not available": "torch {release} could not be fetched.",
    "base refused": "this torch {release} is not what its metadata says, or has another layout.",
    "tool missing": "install what is missing, or choose fewer tiers with --to.",
    "cannot be written": "free some space or choose another --work directory.",
    "internal error": "run again with --debug and report it.",
    "failed": "read the log.",
}

# Kinds that the machine or the network causes: the next run may pass.
TRANSIENT = frozenset({"tool missing", "cannot be written", "not available", "internal error"})


@dataclass(frozen=True)
class Finding:
    """Why a tier failed, and how to fix it.

    kind: one of KINDS ('landed upstream', 'anchor gone', ...).
    what, where, why, next, exit_code: as the error has them.
    """

    kind: str
    advice: str
    what: str
    where: str
    why: str
    next: str
    exit_code: int


def finding_of(error: ForkError, release: str, tier: str) -> Finding:
    """An error that stopped a tier as a finding."""
    link_failed = tier == "e" and isinstance(error, CompileError)
    kind = "does not link" if link_failed else error.kind or BY_CLASS.get(type(error), "failed")
    return Finding(
        kind=kind,
        advice=KINDS.get(kind, KINDS["failed"]).format(release=release),
        what=error.what,
        where=error.where,
        why=error.why,
        next=error.next,
        exit_code=error.exit_code,
    )


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
        plain = memo.dump(self)
        assert isinstance(plain, dict)
        subjects = [
            {**target, "facts": target["facts"] or {}, "changes": target["changes"] or {}}
            for target in plain.pop("targets")
        ]
        return {**plain, "subjects": subjects, "red": self.red, "format": 1}
