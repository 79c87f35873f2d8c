"""Carries additions to every subject: side by side, each result kept by what it was made from."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..additions.load import Additions
from ..errors import ForkError, InternalError
from ..pipelines import workdir
from ..upstream.base import Base
from ..util import files
from ..util.ui import Ui
from . import cross_release, targets, tiers
from . import facts as facts_module
from .findings import finding_of
from .model import (
    FAILED,
    IMPOSSIBLE,
    NOT_ASKED,
    NOT_REACHED,
    PASSED,
    TIERS,
    Matrix,
    SubjectResult,
    TierResult,
    subject_from_json,
    subject_to_json,
)
from .targets import Opening, Target

Watch = Callable[[str, str], None]  # subject's name, what it is doing


@dataclass(frozen=True)
class Settings:
    """How to run the matrix."""

    additions: Additions
    opening: Opening
    tiers: str  # letters, in order
    work: Path
    jobs: int  # subjects at once
    compilers: int  # at once for each subject
    fresh: bool  # look at nothing that was kept


def run(chosen: Sequence[Target], settings: Settings, watch: Watch) -> Matrix:
    """All subjects; nothing is raised for one that fails."""
    started = time.monotonic()
    with ThreadPoolExecutor(settings.jobs) as pool:
        results = list(pool.map(lambda subject: _kept_or_run(subject, settings, watch), chosen))
    additions = settings.additions
    return Matrix(
        additions=additions.root.name,
        operators=tuple(entry.name for entry in additions.native.entries),
        tiers=settings.tiers,
        made=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seconds=time.monotonic() - started,
        subjects=cross_release.compare(results, settings.opening.pins, settings.work),
    )


def _kept_or_run(subject: Target, settings: Settings, watch: Watch) -> SubjectResult:
    started = time.monotonic()
    try:
        watch(subject.name, "opening")
        base = targets.open_subject(
            subject, settings.opening, lambda text: watch(subject.name, text)
        )
    except ForkError as error:
        return _unopened(subject, settings, error, time.monotonic() - started)
    note = settings.work / "results" / f"{_key(base, settings)}.json"
    known = None if settings.fresh else files.read_json(note)
    if known is not None:
        watch(subject.name, "")
        return replace(subject_from_json(known), name=subject.name, cached=True)
    result = carry(subject, base, settings, watch)
    # What failed for the machine's sake (no compiler, a full disk) may pass the next time.
    if not any(_passing(tier) for tier in result.tiers):
        files.write_json(note, subject_to_json(result))
    watch(subject.name, "")
    return result


def _passing(tier: TierResult) -> bool:
    transient = {"tool missing", "cannot be written", "not to be had", "fault of torchfork"}
    return tier.finding is not None and tier.finding.kind in transient


def _key(base: Base, settings: Settings) -> str:
    """Everything that a result depends on."""
    additions = settings.additions
    return files.sha256_text(
        base.identity, additions.fingerprint(), str(additions.root), settings.tiers,
        workdir.tooling_fingerprint(), *tiers.surroundings(settings.tiers),
    )  # fmt: skip


def _unopened(
    subject: Target, settings: Settings, error: ForkError, seconds: float
) -> SubjectResult:
    first = settings.tiers[0]
    failed = TierResult(
        first, FAILED, seconds, error.what, finding_of(error, subject.name, first), error.render()
    )
    results = [failed if letter == first else _not_run(letter, subject, settings, first)
               for letter in TIERS]  # fmt: skip
    commit = subject.release.commit if subject.release else ""
    return SubjectResult(subject.name, "", commit, subject.place, tuple(results))


def carry(subject: Target, base: Base, settings: Settings, watch: Watch) -> SubjectResult:
    """Every tier in turn, up to the first that fails."""
    additions = settings.additions
    layout = workdir.layout_for(base, additions, settings.work)
    quiet = Ui(quiet=True)
    with workdir.locked(layout, quiet):
        carried = tiers.TargetRun(
            base=base, additions=additions, layout=layout, cache=settings.opening.cache,
            work=settings.work, jobs=settings.compilers, final="e" in settings.tiers,
            say=lambda text: watch(subject.name, text),
        )  # fmt: skip
        results: list[TierResult] = []
        failed = ""
        error: ForkError | None = None
        for letter in TIERS:
            if failed or letter not in settings.tiers or letter not in subject.possible:
                results.append(_not_run(letter, subject, settings, failed))
                continue
            result, error = _tier(letter, carried, subject)
            results.append(result)
            failed = letter if result.red else ""
    known = carried.upstream.schemas
    told = facts_module.gather(base, additions, carried.upstream) if known else {}
    return SubjectResult(
        name=subject.name,
        version=base.version,
        commit=base.git_version,
        base=base.wheel.name if base.wheel else subject.place,
        tiers=tuple(results),
        operators=tuple(_operators(additions, error, failed)),
        facts={**told, **carried.facts},
    )


def _not_run(letter: str, subject: Target, settings: Settings, failed: str) -> TierResult:
    if letter not in settings.tiers:
        return TierResult(letter, NOT_ASKED, outcome="not among the tiers that were asked for")
    if letter not in subject.possible:
        why = "a source tree has no headers or libraries to hold it against"
        return TierResult(letter, IMPOSSIBLE, outcome=why)
    return TierResult(letter, NOT_REACHED, outcome=f"tier ({failed}) failed")


def _tier(
    letter: str, carried: tiers.TargetRun, subject: Target
) -> tuple[TierResult, ForkError | None]:
    started = time.monotonic()
    carried.log, carried.rows = [], []
    error: ForkError | None = None
    state, finding, outcome = PASSED, None, ""
    try:
        outcome = tiers.TASKS[letter](carried)
    except ForkError as refused:
        error = refused
    except Exception as unforeseen:  # one subject's trouble must not end the others
        error = InternalError(
            "torchfork met something that it does not know",
            why=f"{type(unforeseen).__name__}: {unforeseen}",
        )
        error.__cause__ = unforeseen
    if error is not None:
        state, outcome = FAILED, error.what
        finding = finding_of(error, subject.name, letter)
        carried.log.append(error.render())
    seconds = time.monotonic() - started
    log = "\n".join(carried.log)
    result = TierResult(
        letter, state, round(seconds, 2), outcome, finding, log, tuple(carried.rows)
    )
    return result, error


def _operators(additions: Additions, error: ForkError | None, failed: str) -> list[dict[str, str]]:
    """Each declared operator: whether it came through, or what was objected to it."""
    said: dict[str, str] = {}
    for objection in tiers.objections_of(error) if error else ():
        for name in _concerned(objection, additions):
            said.setdefault(name, objection.what)
    rows = []
    for entry in additions.native.entries:
        held_up = f"held up: tier ({failed}) failed elsewhere" if failed else "came through"
        state = FAILED if entry.name in said else NOT_REACHED if failed else PASSED
        rows.append({"name": entry.name, "state": state, "text": said.get(entry.name, held_up)})
    return rows


def _concerned(objection: ForkError, additions: Additions) -> list[str]:
    """The operators whose entry an objection points into, or whose name it quotes."""
    path, _, line = objection.where.rpartition(":")
    for yaml_file in (additions.native, additions.derivatives):
        if path == str(yaml_file.path) and line.isdigit():
            entry = yaml_file.entry_at(int(line))
            return [entry.name] if entry else []
    return [e.name for e in additions.native.entries if f"'{e.name}'" in objection.what]


def as_json(matrix: Matrix) -> dict[str, Any]:
    """The whole run as plain values."""
    return matrix.to_json()
