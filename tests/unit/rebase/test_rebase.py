"""The matrix without a torch: which tiers run, what fails, what the reports say of it."""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sample_additions as sample
import sample_wheel
from rich.console import Console

from torchfork import errors
from torchfork.additions import ranges
from torchfork.additions.load import Additions
from torchfork.codegen.build_dir import BuildDir
from torchfork.codegen.model import Manifest
from torchfork.commands import rebase
from torchfork.errors import BaseRefusedError, CompileError, RebaseError
from torchfork.native import symbols
from torchfork.rebase import compare, model, render, run, targets, tiers
from torchfork.rebase.model import (
    FAILED,
    IMPOSSIBLE,
    NOT_ASKED,
    NOT_REACHED,
    PASSED,
    TIERS,
    Changes,
    Facts,
    Finding,
    Matrix,
    Row,
    TargetResult,
    TierResult,
    Wrapper,
)
from torchfork.upstream import pins as releases
from torchfork.upstream.base import Upstream, probe
from torchfork.util import files, memo
from torchfork.util.ui import Ui

FOUND = Finding(
    "anchor gone", "Find where the list went.", "a place is <lost>", "torch/overrides.py",
    "0 lines match\n| none | ```", "look", 23,
)  # fmt: skip
OTHER = replace(FOUND, kind="patch conflicts", what="a patch is lost", advice="Resolve it.")
CHANGES = Changes("9.1.0", 3, {"touched": ("+ swung(Tensor self)",)})
FACTS = Facts(
    operators=10, tags=("core",), dispatch_keys=("CPU",), validations=("a: assert x",),
    touched={"mul": "mul(Tensor a) -> Tensor"}, templates={"T.cpp": "1"}, identity="9",
)  # fmt: skip


def test_every_kind_of_error_has_its_advice() -> None:
    """Else the report says nothing but to read the log."""
    texts = (path.read_text() for path in Path(errors.__file__).parent.rglob("*.py"))
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    calls = [n for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func).endswith("Error")]
    named = [k.value for call in calls for k in call.keywords if k.arg == "kind"]
    values = [value for node in named for value in ast.walk(node)]
    kinds = {v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)}
    assert {"header gone", "anchor doubled"} <= kinds
    assert kinds | set(model.BY_CLASS.values()) <= model.KINDS.keys()


def result(name: str = "9.1.0", *, fails: str = "") -> TargetResult:
    """A target that passed tiers a to d, or failed at one of them."""
    every = []
    for letter in TIERS:
        if letter in "ef":
            every.append(TierResult(letter, NOT_ASKED))
        elif letter == fails:
            every.append(TierResult(letter, FAILED, 1.5, "lost", FOUND, "a <log>", others=(OTHER,)))
        elif fails and letter > fails:
            every.append(TierResult(letter, NOT_REACHED))
        else:
            rows = (Row("torch/overrides.py", PASSED, "edited"),)
            every.append(TierResult(letter, PASSED, 2.0, "fine", None, "log", rows))
    row = Row("swing", FAILED if fails else PASSED, "said")
    return TargetResult(name, f"{name}+cpu", "c0ffee" * 6, "torch.whl", tuple(every), (row,))


def matrix(*results: TargetResult) -> Matrix:
    return Matrix("mine", ("swing",), "abcd", "2026-01-01T00:00:00+00:00", 3.0, results)


BOTH = matrix(result(), replace(result("9.2.0", fails="b"), changes=CHANGES))


def test_a_failed_target_ends_the_command_red_and_the_report_is_there(tmp_path: Path) -> None:
    with pytest.raises(RebaseError, match="1 of 2") as caught:
        rebase.report(BOTH, tmp_path / "report", None, Ui())
    assert caught.value.exit_code == 41
    assert caught.value.where == "9.2.0" and "anchor gone" in caught.value.why
    for name in ("matrix.json", "matrix.md", "matrix.html"):
        assert (tmp_path / "report" / name).stat().st_size > 200
    rebase.report(matrix(result(), result("9.2.0")), tmp_path, None, Ui())  # is no error


def test_the_json_keeps_its_form() -> None:
    written = json.loads(json.dumps(BOTH.to_json()))
    assert {"additions", "operators", "tiers", "made", "seconds", "subjects", "red"} <= set(written)
    assert (written["format"], written["red"]) == (1, True)
    first, failed = written["subjects"]
    assert {"name", "version", "commit", "base", "tiers", "operators", "cached"} <= set(first)
    assert first["facts"] == {} and first["changes"] == {}
    assert failed["changes"]["sections"] == {"touched": ["+ swung(Tensor self)"]}
    tier = failed["tiers"][1]
    assert (tier["tier"], tier["state"], tier["finding"]["kind"]) == ("b", "failed", "anchor gone")
    assert first["tiers"][1]["rows"][0]["name"] == "torch/overrides.py"
    known = replace(BOTH.targets[1], facts=replace(FACTS, wrapper=Wrapper("#if X", "#endif")))
    assert memo.load(TargetResult, json.loads(json.dumps(memo.dump(known)))) == known


def settings(tmp_path: Path, additions: Additions) -> run.Settings:
    python = probe(headers=False)
    pins = sample_wheel.releases(tmp_path / "releases.toml")
    opening = targets.TargetOpening(python, pins, tmp_path / "cache", "", False)
    return run.Settings(additions, opening, "abcd", tmp_path / "work", 1, 1, False)


def test_a_target_that_cannot_be_opened_fails_and_is_never_kept(tmp_path: Path) -> None:
    lost = targets.Target(targets.WHEEL, "lost", place=str(tmp_path / "torch-9-lost.whl"))
    additions = sample.write(tmp_path / "mine")
    made = run.run([lost], settings(tmp_path, additions), lambda *_: None)
    assert made.red and made.targets[0].first_failure
    assert [tier.state for tier in made.targets[0].tiers[:2]] == [FAILED, NOT_REACHED]
    assert not (tmp_path / "work" / "results").exists()


def carried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merge: Any, kind: str = targets.TREE
) -> TargetResult:
    """A target whose tier (a) is `merge`, and whose tier (b) passes."""

    def run_all(context: tiers.Context) -> Iterator[tiers.Passed]:
        yield merge(context)
        yield tiers.Passed("patched")
        yield tiers.Passed("generated")

    monkeypatch.setattr(tiers, "run_all", run_all)
    monkeypatch.setattr(run, "_facts", lambda *_: FACTS)
    additions = sample.write(tmp_path / "mine")
    target = targets.Target(kind, "9.1.0")
    return run.carry(
        target, sample.base(tmp_path / "base"), settings(tmp_path, additions), lambda _: None
    )


def test_tiers_that_a_target_cannot_have_are_said_to_be_impossible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def merge(context: tiers.Context) -> tiers.Passed:
        context.log("looked")
        return tiers.Passed("merged", (Row("a", PASSED, "b"),))

    made = carried(tmp_path, monkeypatch, merge)
    assert [t.state for t in made.tiers] == [PASSED] * 3 + [IMPOSSIBLE] + [NOT_ASKED] * 2
    assert (made.tiers[0].log, made.tiers[0].outcome) == ("looked", "merged")
    assert made.tiers[0].rows == (Row("a", PASSED, "b"),)
    assert [row.state for row in made.operators] == [PASSED, PASSED]


def test_every_error_of_a_failed_tier_is_a_finding_and_operators_without_one_are_not_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def merge(context: tiers.Context) -> tiers.Passed:
        (swing, _) = context.additions.native.entries
        landed = errors.CollisionError("it landed", where=swing.where(), kind="landed upstream")
        raise tiers.TierFailed([landed, CompileError("no")], [Row("a", FAILED, "b")])

    made = carried(tmp_path, monkeypatch, merge, targets.WHEEL)
    assert [t.state for t in made.tiers[:4]] == [FAILED] + [NOT_REACHED] * 3
    failed = made.tiers[0]
    assert [f.kind for f in failed.findings] == ["landed upstream", "does not compile"]
    assert "it landed" in failed.log and "error: no" in failed.log and failed.rows
    assert made.operators == (
        Row("swing", FAILED, "it landed"),
        Row("sway.more", NOT_REACHED, "not reached: tier (a) failed"),
    )
    assert made.tiers[1].outcome == "not reached: tier (a) failed"


def test_what_nobody_foresaw_fails_one_target_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def merge(context: tiers.Context) -> tiers.Passed:
        raise ZeroDivisionError("of course")

    made = carried(tmp_path, monkeypatch, merge)
    (finding,) = made.tiers[0].findings
    assert finding.kind == "internal error" and "of course" in finding.why


def test_what_is_refused_is_taken_out_with_what_depends_on_it(tmp_path: Path) -> None:
    native = (
        "- func: swing(Tensor self) -> Tensor\n  structured_delegate: swing.out\n"
        "- func: swing.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)\n  structured: True\n"
        "- func: sway(Tensor self) -> Tensor\n"
    )
    derivatives = (
        "- name: swing(Tensor self) -> Tensor\n  self: grad\n"
        "- name: sway(Tensor self) -> Tensor\n  self: grad\n"
    )
    mine = sample.write(tmp_path, native, derivatives)

    def left(*wheres: str) -> tuple[list[str], list[str]]:
        kept = ranges.without(mine, [errors.AdditionsError("no", where=where) for where in wheres])
        assert kept.native.text.count("\n") == native.count("\n")  # lines stay where they are
        found = [[e.name for e in f.entries] for f in (kept.native, kept.derivatives)]
        return found[0], found[1]

    everything = ["swing", "swing.out", "sway"], ["swing", "sway"]
    assert left() == everything and left("elsewhere.yaml:1") == everything
    assert left(f"{mine.native.path}:4") == (["sway"], ["sway"])
    assert left(f"{mine.derivatives.path}:4") == (everything[0], ["swing"])


def test_one_run_names_collisions_and_what_the_generator_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refusal of the generator's hides the next: it stops at the first."""
    native = "".join(f"- func: {n}(Tensor self) -> Tensor\n" for n in ("relu", "one", "two", "ok"))
    mine = sample.write(tmp_path / "mine", native)
    known = Upstream(("relu(Tensor self) -> Tensor",), frozenset(), frozenset())
    monkeypatch.setattr(tiers.header_check, "list_operators", lambda *_: known)
    monkeypatch.setattr(tiers.graft, "merge_yaml", lambda *_: None)

    def describe(context: tiers.graft.BuildContext, *_: Any) -> Manifest:
        for entry in context.additions.native.entries:
            if entry.name in ("one", "two"):
                raise errors.AdditionsError(f"refuses {entry.name}", where=entry.where())
        return Manifest()

    monkeypatch.setattr(tiers.graft, "describe", describe)
    base: Any = sample.base(tmp_path / "base")
    context = tiers.Context(
        base=base, additions=mine, layout=BuildDir(tmp_path), cache=tmp_path,
        work=tmp_path, jobs=1, final=False, progress=print, log=print,
    )  # fmt: skip
    with pytest.raises(errors.ForkError) as failed:
        tiers.merge(context)
    error = failed.value
    said = [each.what for each in (error, *error.also)]
    assert said[0].startswith("'relu' exists") and said[1:] == ["refuses one", "refuses two"]


def test_every_finding_has_advice_and_every_class_of_error_a_finding() -> None:
    assert all("{release}" not in text.format(release="9") for text in model.KINDS.values())
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.ForkError):
            found = model.finding_of(kind("what"), "9.1.0", "a")
            assert found.kind in model.KINDS
    named = model.finding_of(BaseRefusedError("x", kind="anchor gone"), "9.1.0", "b")
    assert named.kind == "anchor gone" and "9.1.0" in named.advice
    assert model.finding_of(CompileError("x"), "9", "e").kind == "does not link"
    assert set(model.KINDS) >= model.TRANSIENT


def test_advice_names_only_options_that_there_are() -> None:
    parser = argparse.ArgumentParser()
    rebase.add_rebase_arguments(parser)
    known = {*parser.format_help().split(), "--debug"}  # which every command has
    named = set(re.findall(r"--[a-z]+", " ".join(model.KINDS.values())))
    assert {"--to", "--work"} <= named <= known


def test_the_page_is_whole_escaped_and_loads_nothing() -> None:
    text = render.page(BOTH)
    assert "a &lt;log&gt;" in text and "a place is &lt;lost&gt;" in text
    assert "<script" not in text and "http" not in text and "url(" not in text
    assert "prefers-color-scheme: dark" in text and "max-width" in text
    assert "failed: 9.2.0" in text and "+ swung(Tensor self)" in text
    assert "a patch is lost" in text
    assert text.count("popovertarget=") >= 3 * 4


def test_markdown_has_every_finding_and_keeps_its_table_and_fences() -> None:
    text = render.markdown(BOTH)
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({line.replace("\\|", "").count("|") for line in rows if "none" not in line}) == 1
    assert "✗ failed 1.5 s" in text and "Find where the list went." in text
    assert "a patch is lost" in text and "````text" in text
    assert "\n\nTouched" not in text and "Schemas that the operators here touch:" in text
    assert "None." in render.markdown(matrix(result()))


def test_the_chain_has_a_row_for_each_step_and_names_no_path(tmp_path: Path) -> None:
    steps = matrix(result(), replace(result("9.2.0", fails="d"), changes=CHANGES))
    written = tmp_path / "chain.md"
    with pytest.raises(RebaseError):
        rebase.report(steps, tmp_path, written, Ui())
    text = written.read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows] == ["| step", "| ---", "| 9.1.0", "| 9.1.0 → 9.2.0"]
    assert rows[2][3:] == ["1 as they are", "✓a ✓b ✓c ✓d", "none |"]
    assert rows[3][1:3] == ["+3", "schemas that the operators here touch: 1"]
    assert rows[3][4:] == ["✓a ✓b ✓c ✗d", "anchor gone |"]
    assert "- torch 9.2.0, tier (d), anchor gone: Find where the list went." in text
    assert FOUND.where not in text and "torch.whl" not in text
    assert render.chain(matrix(result())).endswith("## Failures\n\nNone.\n")


def test_the_terminal_says_state_in_words(capfd: pytest.CaptureFixture[str]) -> None:
    render.show(matrix(result(), result("9.2.0", fails="b")), Console(width=120))
    said = capfd.readouterr().out
    assert "FAILED 1.5 s" in said and "anchor gone" in said and "a patch is lost" in said
    assert "1 of 2 releases pass; failed: 9.2.0." in said
    rows = [*(target.operators for target in BOTH.targets), ()]
    states = [cell and cell.state for cell in render.by_name(rows)["swing"]]
    assert states == [PASSED, FAILED, None]


def test_changes_are_only_what_changed(tmp_path: Path) -> None:
    assert compare.changes(FACTS, FACTS, "9", tmp_path).sections == {}
    after = replace(
        FACTS, operators=12, touched={"mul": "mul(Tensor a, int n) -> Tensor"}, tags=(),
        templates={"T.cpp": "2", "U.cpp": "1"}, validations=("a: assert x", "b: raise Error"),
    )  # fmt: skip
    made = compare.changes(FACTS, after, "9", tmp_path)
    assert made.operators == 2
    assert made.sections == {
        "touched": ("- mul(Tensor a) -> Tensor", "+ mul(Tensor a, int n) -> Tensor"),
        "templates": ("+ U.cpp", "~ T.cpp"),
        "validations": ("+ b: raise Error",),
        "enumerations": ("- tags: core",),
    }
    old, new = (replace(FACTS, wrapper=Wrapper(before=text)) for text in ("#if A", "#if B"))
    found = compare.changes(old, new, "9", tmp_path).sections["wrapper"]
    assert found == ("- before: '#if A'", "+ before: '#if B'")


def exporting(
    work: Path, name: str, exports: Sequence[str], needed: tuple[str, ...] | None = None
) -> TargetResult:
    """A target whose libraries export these signatures."""
    facts = replace(FACTS, identity=name, needed=needed)
    files.write_bytes(
        symbols.signatures_file(name, work), gzip.compress("\n".join(exports).encode())
    )
    return replace(result(name, fails="" if needed else "d"), facts=facts)


def test_symbols_that_upstream_hides_are_reported_where_the_tier_failed(tmp_path: Path) -> None:
    exported = ["at::here()", "at::hidden()", "at::asked_before()"]
    local = "c10::thread_local_and_never_exported"
    before = exporting(tmp_path, "9.1.0", exported, (*exported, local))
    after = exporting(tmp_path, "9.2.0", [*exported[:1]], ("at::here()", "at::hidden()", local))
    failed = exporting(tmp_path, "9.3.0", ["at::here()"])
    pins = sample_wheel.releases(tmp_path / "releases.toml")

    def hidden(*results: TargetResult) -> tuple[str, ...]:
        changed = compare.compare(results, pins, tmp_path, tmp_path)[1].changes
        assert changed is not None
        return changed.sections["hidden"]

    assert hidden(before, after) == ("- at::hidden()",)
    # What a release that failed would need is not known: all that the one before it needed.
    assert hidden(before, failed) == ("- at::asked_before()", "- at::hidden()")


def test_what_is_named_becomes_the_right_kind_of_target(tmp_path: Path) -> None:
    pins = releases.load()
    words = [str(tmp_path), "nightly/torch-9.whl", "main", pins.default]
    found = targets.parse(words, pins, everything=False)
    assert [s.kind for s in found] == [
        targets.RELEASE, targets.TREE, targets.WHEEL, targets.REF,
    ]  # fmt: skip
    assert targets.parse([], pins, everything=True)[0].name == pins.versions[0]
    assert found[1].possible == "abc" and found[2].possible == "abcdef"
