"""What only several subjects together tell: what changed, and which refusals are new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..native import exports
from ..upstream.pins import Releases
from ..util import files
from . import changes
from .findings import KINDS
from .model import PASSED, SubjectResult, TierResult

# Refusals that may be the additions' fault or upstream's: a release that took them decides.
_REFUSED = {"entry refused", "derivative refused"}


def compare(
    results: Sequence[SubjectResult], pins: Releases, work: Path
) -> tuple[SubjectResult, ...]:
    """Each result with what changed since the one before it, or since the release before it."""
    compared: list[SubjectResult] = []
    for result in results:
        before = compared[-1] if compared else _kept_before(result, pins, work)
        if before is not None and before.facts and result.facts:
            result = replace(result, changes=_changes(before, result, work))
        compared.append(_reconsidered(result, compared, before))
    for result in compared:
        # What the next run with fewer subjects is compared with.
        if result.facts:
            files.write_json(_note(result.name, work), _as_note(result))
    return tuple(compared)


def _changes(before: SubjectResult, after: SubjectResult, work: Path) -> dict[str, Any]:
    found = changes.between(before.facts, after.facts, before.name)
    exported = exports.read(str(after.facts.get("identity", "")), work)
    if exported is not None:
        # Needed of both the earlier release and this one: else the generator asks for other things.
        needed = set(before.facts.get("needed", ()))
        # Some names no wheel of this system exports under their own: thread-local variables.
        exported_before = exports.read(str(before.facts.get("identity", "")), work)
        needed &= needed if exported_before is None else exported_before
        hidden = sorted(needed - exported)
        still = set(after.facts.get("needed", hidden))
        lines = [f"- {name}" for name in hidden if name in still]
        if lines:
            found["sections"]["hidden"] = lines
    return found


def _reconsidered(
    result: SubjectResult, earlier: Sequence[SubjectResult], before: SubjectResult | None
) -> SubjectResult:
    """A refusal that an earlier release did not make is new validation upstream."""
    failed = result.first_failure
    if failed is None or failed.finding is None or failed.finding.kind not in _REFUSED:
        return result
    took = [
        other.name
        for other in (*earlier, *([before] if before else []))
        if any(tier.tier == failed.tier and tier.state == PASSED for tier in other.tiers)
    ]
    if not took:
        return result
    finding = replace(
        failed.finding,
        kind="new validation",
        advice=KINDS["new validation"].format(release=result.name),
        why=f"{failed.finding.why}\ntorch {took[-1]} took it".strip(),
    )
    tiers = tuple(replace(t, finding=finding) if t is failed else t for t in result.tiers)
    return replace(result, tiers=tiers)


def _note(name: str, work: Path) -> Path:
    return work / "facts" / f"{files.sha256_text(name)[:16]}.json"


def _as_note(result: SubjectResult) -> dict[str, Any]:
    passed = [tier.tier for tier in result.tiers if tier.state == PASSED]
    return {"name": result.name, "facts": result.facts, "passed": passed}


def _kept_before(result: SubjectResult, pins: Releases, work: Path) -> SubjectResult | None:
    """The pinned release before a subject as an earlier run left it."""
    versions = pins.versions
    at = versions.index(result.name) if result.name in versions else len(versions)
    for version in reversed(versions[:at]):
        known = files.read_json(_note(version, work))
        if isinstance(known, dict):
            tiers = tuple(TierResult(letter, PASSED) for letter in known["passed"])
            return SubjectResult(version, version, "", "", tiers, facts=known["facts"])
    return None
