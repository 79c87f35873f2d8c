"""Carries additions to every target, side by side; each result is kept by what it was made from."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from ..additions import ranges
from ..additions.load import Additions
from ..codegen import build_dir, header_check
from ..errors import ForkError, InternalError
from ..upstream.base import Base
from ..util import files, memo
from ..util.ui import Ui
from . import compare, model, targets, tiers
from .model import TRANSIENT, Facts, Matrix, Row, TargetResult, TierResult, finding_of
from .targets import Target, TargetOpening
from .tiers import Context, Say, TierFailed

ROOM = Path(__file__).parent  # what findings say is part of a result
Watch = Callable[[str, str], None]  # target's name, what it is doing


@dataclass(frozen=True)
class Settings:
    """How to run the matrix."""

    additions: Additions
    opening: TargetOpening
    tiers: str  # letters, in order
    work: Path
    jobs: int  # targets at once
    compilers: int  # at once for each target
    fresh: bool  # use no kept result


@dataclass(frozen=True)
class _Attempted:
    """How the tiers of a target ended: those that ran, and the error of the last one."""

    results: tuple[TierResult, ...]
    error: ForkError | None
    needed: tuple[str, ...] | None


def _attempt(target: Target, letters: str, context: Context) -> _Attempted:
    """Run the tiers that were asked for and can run, up to the first that fails."""
    log: list[str] = []

    def keep(text: str) -> None:
        log.append(text)
        context.progress(text.partition("\n")[0])

    results, error, needed = list[TierResult](), None, None
    running = tiers.run_all(replace(context, log=keep))
    for letter in model.TIERS:
        if letter not in letters or letter not in target.possible:
            break
        started, rows = time.monotonic(), tuple[Row, ...]()
        log.clear()
        try:
            passed = next(running)
        except TierFailed as failed:
            error, rows = failed.error, failed.rows
        except ForkError as refused:
            error = refused
        except Exception as unforeseen:  # the other targets go on
            error = InternalError(
                "internal error",
                why=f"{type(unforeseen).__name__}: {unforeseen}",
                next="report it with the log of this tier",
            )
        seconds = round(time.monotonic() - started, 2)
        if error:
            results.append(_failed(letter, target, error, seconds, log, rows))
            break
        results.append(
            TierResult(
                letter, model.PASSED, seconds, passed.outcome, log="\n".join(log), rows=passed.rows
            )
        )
        needed = passed.needed or needed
    return _Attempted(tuple(results), error, needed)


def _failed(
    letter: str, target: Target, error: ForkError, seconds: float, log: Sequence[str] = (),
    rows: tuple[Row, ...] = (),
) -> TierResult:  # fmt: skip
    finding, *others = (finding_of(each, target.name, letter) for each in (error, *error.also))
    text = "\n".join([*log, error.render()])
    return TierResult(
        letter, model.FAILED, seconds, finding.what, finding, text, rows, tuple(others)
    )


def run(chosen: Sequence[Target], settings: Settings, watch: Watch) -> Matrix:
    """All targets; nothing is raised for one that fails."""
    started, additions = time.monotonic(), settings.additions
    key = files.sha256_text(
        additions.fingerprint(), str(additions.root), settings.tiers,
        build_dir.tooling_fingerprint(), files.fingerprint(files.tree_files(ROOM), ROOM),
        *tiers.machine_key(settings.tiers, os.environ),
    )  # fmt: skip
    with ThreadPoolExecutor(settings.jobs) as pool:
        results = list(pool.map(lambda target: _kept_or_run(target, settings, key, watch), chosen))
    return Matrix(
        additions=additions.root.name,
        operators=tuple(dict.fromkeys(entry.name for entry in additions.native.entries)),
        tiers=settings.tiers,
        made=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        targets=compare.compare(results, settings.opening.pins, settings.work, additions.root),
        seconds=time.monotonic() - started,
    )


def _kept_or_run(target: Target, settings: Settings, key: str, watch: Watch) -> TargetResult:
    try:
        return _carried(target, settings, key, lambda text: watch(target.name, text))
    finally:
        watch(target.name, "")


def _carried(target: Target, settings: Settings, key: str, progress: Say) -> TargetResult:
    """key: everything that a result depends on besides its base."""
    started = time.monotonic()
    progress("opening")
    try:
        base = targets.open_target(target, settings.opening, progress)
    except ForkError as error:
        failed = _failed(settings.tiers[0], target, error, time.monotonic() - started)
        commit = target.release.commit if target.release else ""
        every = _every_tier([failed], target, settings)
        return TargetResult(target.name, "", commit, target.place, every)
    key = files.sha256_text(base.identity, key)
    note = settings.work / "results" / f"{key}.json"
    known = None if settings.fresh else memo.recall(note, key, TargetResult)
    if known is not None:
        return replace(known, name=target.name, cached=True)
    result = carry(target, base, settings, progress)
    kinds = {finding.kind for tier in result.tiers for finding in tier.findings}
    if not kinds & TRANSIENT:
        memo.keep(note, key, result)
    return result


def carry(target: Target, base: Base, settings: Settings, progress: Say) -> TargetResult:
    """The tiers of one target, up to the first that fails."""
    try:
        additions = ranges.for_release(settings.additions, base.version)
    except ForkError as error:
        failed = _failed(settings.tiers[0], target, error, 0.0)
        every = _every_tier([failed], target, settings)
        return TargetResult(target.name, base.version, base.git_version, target.place, every)
    layout = build_dir.for_base(base, additions, settings.work)
    context = Context(
        base=base, additions=additions, layout=layout, cache=settings.opening.cache,
        work=settings.work, jobs=settings.compilers, final="e" in settings.tiers,
        progress=progress, log=progress,
    )  # fmt: skip
    with build_dir.locked(layout):
        attempts = _attempt(target, settings.tiers, context)
    return TargetResult(
        name=target.name,
        version=base.version,
        commit=base.git_version,
        base=base.wheel.name if base.wheel else target.place,
        tiers=_every_tier(attempts.results, target, settings),
        operators=_operators(settings.additions, attempts, base.version),
        facts=_facts(context, attempts),
    )


def _every_tier(
    results: Sequence[TierResult], target: Target, settings: Settings
) -> tuple[TierResult, ...]:
    """The tiers that ran, and why each of the others did not."""
    ran = {result.tier: result for result in results}
    failed = next((result.tier for result in results if result.red), "")
    return tuple(
        ran.get(letter) or _not_run(letter, target, settings, failed) for letter in model.TIERS
    )


def _not_run(letter: str, target: Target, settings: Settings, failed: str) -> TierResult:
    if letter not in settings.tiers:
        return TierResult(
            letter, model.NOT_ASKED, outcome="not among the tiers that were asked for"
        )
    if letter not in target.possible:
        why = "a source tree has no headers or libraries to compare with"
        return TierResult(letter, model.IMPOSSIBLE, outcome=why)
    return TierResult(letter, model.NOT_REACHED, outcome=f"not reached: tier ({failed}) failed")


def _facts(context: Context, attempts: _Attempted) -> Facts | None:
    """What later runs compare with; None where the code generator could not be asked."""
    try:
        upstream = header_check.list_operators(context.base, context.cache)
        facts = compare.facts_of(context.base, context.additions, upstream)
        if any(result.tier == "d" for result in attempts.results):
            checked = header_check.check_headers(context.base, context.cache, Ui(quiet=True))
            facts = replace(facts, wrapper=checked.wrapper, needed=attempts.needed)
        return facts
    except ForkError:
        return None


def _operators(additions: Additions, attempts: _Attempted, version: str) -> tuple[Row, ...]:
    """Each declared operator: passed, not for this release, or which error is about it."""
    others = ranges.left_out(additions, version)
    error = attempts.error
    about: dict[str, str] = {}
    for each in (error, *error.also) if error else ():
        for name in _concerned(each, additions):
            about.setdefault(name, each.what)
    failed = attempts.results[-1].tier if error else ""
    state = (
        (model.NOT_REACHED, f"not reached: tier ({failed}) failed")
        if failed
        else (model.PASSED, "passed")
    )
    names = [entry.name for entry in additions.native.entries]
    return tuple(
        Row(name, model.FAILED, about[name]) if name in about
        else Row(name, model.NOT_NEEDED, f"not needed: for torch {others[name]}") if name in others
        else Row(name, *state)
        for name in dict.fromkeys(names)
    )  # fmt: skip


def _concerned(error: ForkError, additions: Additions) -> list[str]:
    """The operators whose entry an error points at, or whose name it quotes."""
    for yaml_file in (additions.native, additions.derivatives):
        if error.where.rpartition(":")[0] == str(yaml_file.path):
            return [entry.name for entry in ranges.entries_at(yaml_file, [error])]
    return [e.name for e in additions.native.entries if f"'{e.name}'" in error.what]
