"""Names the cause of a failed tier, and says how to fix it."""

from __future__ import annotations

from ..errors import (
    AdditionsError,
    BaseRefusedError,
    CollisionError,
    CompileError,
    DerivativeError,
    DownloadError,
    ForkError,
    HashMismatchError,
    InternalError,
    KernelError,
    OutputError,
    ToolkitMismatchError,
    ToolMissingError,
    UnknownReleaseError,
    VerificationError,
)
from .model import Finding

# The kind of an error that does not name its own.
BY_CLASS: tuple[tuple[type[ForkError], str], ...] = (
    (CollisionError, "name taken upstream"),
    (DerivativeError, "derivative refused"),
    (AdditionsError, "entry refused"),
    (KernelError, "kernel missing"),
    (CompileError, "does not compile"),
    (ToolkitMismatchError, "tool missing"),
    (ToolMissingError, "tool missing"),
    (UnknownReleaseError, "not available"),
    (DownloadError, "not available"),
    (HashMismatchError, "not available"),
    (OutputError, "cannot be written"),
    (BaseRefusedError, "base refused"),
    (VerificationError, "does not run"),
    (InternalError, "internal error"),
)

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
    "codegen/driver.py and codegen/api.py; releases before it must go on working.",
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


def finding_of(error: ForkError, release: str, tier: str) -> Finding:
    """An error that stopped a tier as a finding."""
    link_failed = tier == "e" and isinstance(error, CompileError)
    kind = "does not link" if link_failed else error.kind or _by_class(error)
    return Finding(
        kind=kind,
        advice=KINDS.get(kind, KINDS["failed"]).format(release=release),
        what=error.what,
        where=error.where,
        why=error.why,
        next=error.next,
        exit_code=error.exit_code,
    )


def _by_class(error: ForkError) -> str:
    return next((name for kind, name in BY_CLASS if isinstance(error, kind)), "failed")
