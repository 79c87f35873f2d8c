"""Compares targets: what changed upstream from one to the next, and which refusals are new."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..additions.load import Additions
from ..native import symbols
from ..upstream.base import Base, Upstream
from ..upstream.pins import Releases
from ..upstream.python_names import parse
from ..util import files, memo
from .model import KINDS, PASSED, Changes, Facts, TargetResult

# The parts of a comparison in the order of the report, and their titles.
SECTIONS = {
    "touched": "schemas that the operators here touch",
    "hidden": "symbols that the additions need and upstream hides now",
    "wrapper": "text around installed headers",
    "templates": "codegen templates",
    "validations": "validations in the code generator",
    "enumerations": "tags and dispatch keys",
}

# Refusals that may be the additions' fault or upstream's: a release that took them decides.
_REFUSED = {"entry refused", "derivative refused"}
_INCLUDE = re.compile(
    r"#include\s*[<\"]ATen/ops/(\w+?)(?:_native|_ops|_meta|_compositeexplicit\w*)?\.h"
)
_CALL = re.compile(r"\b(?:at::|at::native::|\.)?([A-Za-z_]\w*)\s*\(")
# Folders of the code generator that no addition goes through.
_UNCONCERNED = {
    "executorch", "static_runtime", "operator_versions", "selective_build", "shape_functions",
}  # fmt: skip


def facts_of(base: Base, additions: Additions, upstream: Upstream) -> Facts:
    """The facts of a base that need no compiler."""
    return Facts(
        operators=len(upstream.schemas),
        tags=tuple(sorted(upstream.tags)),
        dispatch_keys=tuple(sorted(upstream.dispatch_keys)),
        touched=touched_schemas(additions, upstream),
        templates=_templates(base),
        validations=_validations(base),
        identity=base.identity,
    )


def touched_schemas(additions: Additions, upstream: Upstream) -> dict[str, str]:
    """The upstream operators that the sources and formulas of the additions call: name → schema."""
    called = set(_called_names(additions))
    by_name = upstream.by_name()
    return {name: by_name[name] for name in sorted(by_name) if name.partition(".")[0] in called}


def _called_names(additions: Additions) -> Iterator[str]:
    """Names of included operator headers, called in formulas, and shared with our overloads."""
    for path in additions.sources:
        yield from _INCLUDE.findall(path.read_text(encoding="utf-8", errors="replace"))
    for entry in additions.derivatives.entries:
        for key, formula in entry.fields.items():
            if key != "name" and isinstance(formula, str):
                yield from _CALL.findall(formula)
    for entry in additions.native.entries:
        yield entry.name.partition(".")[0]


def _templates(base: Base) -> dict[str, str]:
    """A digest of each codegen template: path below the packaged directory → first 16 digits."""
    folders = (base.packaged / "ATen" / "templates", base.packaged / "autograd" / "templates")
    return {
        path.relative_to(base.packaged).as_posix(): files.sha256_file(path)[:16]
        for folder in folders
        for path in files.tree_files(folder)
    }


def _validations(base: Base) -> tuple[str, ...]:
    """Every condition that the code generator refuses something for: 'file: assert …'."""
    folders = (base.root / "torchgen", base.packaged / "autograd")
    paths = {path for folder in folders for path in files.tree_files(folder)}
    return tuple(sorted({
        f"{path.relative_to(base.root).as_posix()}: {text}"
        for path in paths
        if path.suffix == ".py" and not _UNCONCERNED & set(path.parts)
        for text in _refusals(path)
    }))  # fmt: skip


def _refusals(path: Path) -> Iterator[str]:
    """The asserted conditions and raised messages of one file, without their line numbers."""
    try:
        tree = parse(path.read_text(encoding="utf-8"))
    except SyntaxError:  # a file for a Python that is newer than ours
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield f"assert {ast.unparse(node.test)}"[:300]
        elif isinstance(node, ast.Raise) and node.exc is not None:
            yield f"raise {ast.unparse(node.exc)}"[:300]


def compare(
    results: Sequence[TargetResult], pins: Releases, work: Path, additions: Path
) -> tuple[TargetResult, ...]:
    """Each result with what changed since the one before it, or since the release before it.

    work: where facts are kept for later runs with these additions on other releases.
    """
    notes = work / "before" / files.sha256_text(str(additions))[:16]
    compared: list[TargetResult] = []
    for result in results:
        before = compared[-1] if compared else _release_before(result, pins, notes)
        if before is not None and before.facts and result.facts:
            result = replace(result, changes=changes(before.facts, result.facts, before.name, work))
        compared.append(_with_new_validation(result, [*compared, *([before] if before else [])]))
    for result in compared:
        if result.facts and not result.cached:
            memo.keep(_note(result.name, notes), "", result)
    return tuple(compared)


def _note(name: str, notes: Path) -> Path:
    return notes / f"{files.sha256_text(name)[:16]}.json"


def _release_before(result: TargetResult, pins: Releases, notes: Path) -> TargetResult | None:
    """The pinned release before a target as an earlier run kept it."""
    versions = pins.versions
    at = versions.index(result.name) if result.name in versions else len(versions)
    for version in reversed(versions[:at]):
        known = memo.recall(_note(version, notes), "", TargetResult)
        if known is not None:
            return known
    return None


def _with_new_validation(result: TargetResult, earlier: Iterable[TargetResult]) -> TargetResult:
    """A refusal that an earlier release did not make is new validation upstream."""
    failed = result.first_failure
    if failed is None or failed.finding is None or failed.finding.kind not in _REFUSED:
        return result
    accepted = [
        other.name
        for other in earlier
        if any(tier.tier == failed.tier and tier.state == PASSED for tier in other.tiers)
    ]
    if not accepted:
        return result
    finding = replace(
        failed.finding,
        kind="new validation",
        advice=KINDS["new validation"].format(release=result.name),
        why=f"{failed.finding.why}\ntorch {accepted[-1]} accepted it".strip(),
    )
    tiers = tuple(replace(t, finding=finding) if t is failed else t for t in result.tiers)
    return replace(result, tiers=tiers)


def changes(before: Facts, after: Facts, since: str, work: Path) -> Changes:
    """Lines for each section that has any; `since` names the earlier target."""
    sections = {
        "touched": _mapping(before.touched, after.touched),
        "hidden": _hidden(before, after, work),
        "wrapper": _wrapper(before, after),
        "templates": _digests(before.templates, after.templates),
        "validations": [f"+ {line}" for line in _added(before.validations, after.validations)],
        "enumerations": [
            *_sets(before.tags, after.tags, "tags"),
            *_sets(before.dispatch_keys, after.dispatch_keys, "dispatch keys"),
        ],
    }
    return Changes(
        since=since,
        operators=after.operators - before.operators,
        sections={key: tuple(lines) for key, lines in sections.items() if lines},
    )


def _added(before: Iterable[str], after: Iterable[str]) -> list[str]:
    known = set(before)
    return [line for line in after if line not in known]


def _hidden(before: Facts, after: Facts, work: Path) -> list[str]:
    """Signatures that the additions need, the earlier release exported and this one does not."""
    exported = symbols.kept_signatures(after.identity, work)
    exported_before = symbols.kept_signatures(before.identity, work)
    if exported is None or before.needed is None:
        return []
    # Needed on both releases, or else the generator asks for other things. Some names no wheel of
    # this system exports under their own: thread-local variables.
    needed = set(before.needed)
    needed &= needed if exported_before is None else exported_before
    needed &= needed if after.needed is None else set(after.needed)
    return [f"- {name}" for name in sorted(needed - exported)]


def _mapping(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    lines = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old != new:
            lines += [f"- {old}"] if old else []
            lines += [f"+ {new}"] if new else []
    return lines


def _digests(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    lines = [f"- {name}" for name in sorted(before.keys() - after.keys())]
    lines += [f"+ {name}" for name in sorted(after.keys() - before.keys())]
    common = sorted(before.keys() & after.keys())
    return lines + [f"~ {name}" for name in common if before[name] != after[name]]


def _sets(before: Iterable[str], after: Iterable[str], title: str) -> list[str]:
    removed, added = sorted(set(before) - set(after)), sorted(set(after) - set(before))
    lines = [f"- {title}: {', '.join(removed)}"] if removed else []
    return lines + ([f"+ {title}: {', '.join(added)}"] if added else [])


def _wrapper(before: Facts, after: Facts) -> list[str]:
    if before.wrapper is None or after.wrapper is None or before.wrapper == after.wrapper:
        return []
    return [
        f"{sign} {place}: {text!r}"
        for sign, wrapper in (("-", before.wrapper), ("+", after.wrapper))
        for place, text in (("before", wrapper.before), ("after", wrapper.after))
        if text
    ] or ["- no wrapper any more"]
