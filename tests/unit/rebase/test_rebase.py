"""The matrix without a torch: what is red, what it says, and what it is compared with."""

from __future__ import annotations

import argparse
import gzip
import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sample_additions as sample
import sample_wheel

from torchfork import cli, errors
from torchfork.commands import rebase
from torchfork.errors import BaseRefusedError, CompileError, RebaseError, UsageError
from torchfork.native import exports as exports_module
from torchfork.native import fast_compile
from torchfork.native.toolchain import Cuda, Toolchain
from torchfork.native.units import CompileStep
from torchfork.rebase import (
    chain,
    changes,
    cross_release,
    findings,
    markdown,
    page,
    run,
    tables,
    targets,
    terminal,
)
from torchfork.rebase.model import (
    FAILED,
    NOT_ASKED,
    NOT_REACHED,
    PASSED,
    TIERS,
    Finding,
    Matrix,
    SubjectResult,
    TierResult,
    subject_from_json,
    subject_to_json,
)
from torchfork.upstream import interpreter, macho
from torchfork.upstream import pins as releases
from torchfork.util import files
from torchfork.util.ui import Ui

FOUND = Finding(
    "anchor gone", "Find where the list went.", "a place is <lost>", "torch/overrides.py",
    "0 lines match\n| none |", "look", 23,
)  # fmt: skip


def subject(name: str = "9.1.0", *, fails: str = "") -> SubjectResult:
    """A subject that came through tiers a to d, or failed at one of them."""
    tiers = []
    for letter in TIERS:
        if letter in "ef":
            tiers.append(TierResult(letter, NOT_ASKED))
        elif letter == fails:
            tiers.append(TierResult(letter, FAILED, 1.5, "lost", FOUND, "a <log>"))
        elif fails and letter > fails:
            tiers.append(TierResult(letter, NOT_REACHED))
        else:
            rows = ({"name": "torch/overrides.py", "state": PASSED, "text": "filled"},)
            tiers.append(TierResult(letter, PASSED, 2.0, "fine", None, "log", rows))
    row = {"name": "swing", "state": FAILED if fails else PASSED, "text": "said"}
    return SubjectResult(name, f"{name}+cpu", "c0ffee" * 6, "torch.whl", tuple(tiers), (row,))


def matrix(*results: SubjectResult) -> Matrix:
    return Matrix("mine", ("swing",), "abcd", "2026-01-01T00:00:00+00:00", 3.0, results)


def options(tmp_path: Path) -> rebase.RebaseOptions:
    return rebase.RebaseOptions(
        ("9.1.0",),
        False,
        "d",
        False,
        tmp_path,
        tmp_path / "work",
        tmp_path / "report",
        None,
        "",
        1,
        False,
    )


def test_a_red_matrix_ends_the_command_red_and_the_report_is_there(tmp_path: Path) -> None:
    with pytest.raises(RebaseError, match="on 1 of 2") as caught:
        rebase.report(matrix(subject(), subject("9.2.0", fails="b")), options(tmp_path), Ui())
    assert caught.value.exit_code == 41
    assert caught.value.where == "9.2.0" and "anchor gone" in caught.value.why
    for name in ("matrix.json", "matrix.md", "matrix.html"):
        assert (tmp_path / "report" / name).stat().st_size > 200


def test_a_green_matrix_ends_green(tmp_path: Path) -> None:
    rebase.report(matrix(subject(), subject("9.2.0")), options(tmp_path), Ui())


def test_a_subject_that_cannot_be_opened_is_red_and_never_remembered(tmp_path: Path) -> None:
    additions = sample.write(tmp_path / "mine")
    python = interpreter.probe(headers=False)
    pins = sample_wheel.releases(tmp_path / "releases.toml")
    opening = targets.Opening(python, pins, tmp_path / "cache", "", False)
    settings = run.Settings(additions, opening, "abcd", tmp_path / "work", 1, 1, False)
    lost = targets.Target(targets.WHEEL, "lost", place=str(tmp_path / "torch-9-lost.whl"))
    found = run.run([lost], settings, lambda *_: None)
    assert found.red and found.subjects[0].first_failure
    assert [tier.state for tier in found.subjects[0].tiers[:2]] == [FAILED, NOT_REACHED]
    assert not (tmp_path / "work" / "results").exists()


def test_the_command_line_refuses_to_carry_to_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rebase"]) == UsageError.exit_code
    assert "--onto" in capfd.readouterr().err


def test_a_result_survives_being_kept() -> None:
    result = subject(fails="b")
    assert subject_from_json(subject_to_json(result)) == result


def test_every_finding_has_advice_and_every_class_of_error_a_finding() -> None:
    assert all("{release}" not in text.format(release="9") for text in findings.KINDS.values())
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.ForkError):
            found = findings.finding_of(kind("what"), "9.1.0", "a")
            assert found.kind in findings.KINDS
    named = findings.finding_of(BaseRefusedError("x", kind="anchor gone"), "9.1.0", "b")
    assert named.kind == "anchor gone" and "9.1.0" in named.advice
    assert findings.finding_of(CompileError("x"), "9", "e").kind == "does not link"


def test_the_page_is_whole_escaped_and_loads_nothing() -> None:
    text = page.render(matrix(subject(), replace(subject("9.2.0", fails="b"), changes=CHANGED)))
    assert "a &lt;log&gt;" in text and "a place is &lt;lost&gt;" in text
    assert "<script" not in text and "http" not in text and "url(" not in text
    assert "prefers-color-scheme: dark" in text and "max-width" in text
    assert "9.2.0 needs a person" in text and "+ swung(Tensor self)" in text
    assert text.count("popovertarget=") >= 3 * 4


CHANGED = {"since": "9.1.0", "operators": 3, "sections": {"touched": ["+ swung(Tensor self)"]}}


def test_markdown_says_who_is_needed_and_keeps_its_table() -> None:
    text = markdown.render(matrix(subject(), subject("9.2.0", fails="b")))
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({line.replace("\\|", "").count("|") for line in rows if "none" not in line}) == 1
    assert "✗ failed 1.5 s" in text and "Find where the list went." in text
    assert "Nothing." in markdown.render(matrix(subject()))


def test_the_chain_says_each_step_and_who_is_needed_and_names_no_path(tmp_path: Path) -> None:
    steps = matrix(subject(), replace(subject("9.2.0", fails="d"), changes=CHANGED))
    written = tmp_path / "chain.md"
    with pytest.raises(RebaseError):
        rebase.report(steps, replace(options(tmp_path), chain=written), Ui())
    text = written.read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows] == ["| step", "| ---", "| 9.1.0", "| 9.1.0 → 9.2.0"]
    assert rows[2][3:] == ["1 as they are", "✓a ✓b ✓c ✓d", "nothing |"]
    assert rows[3][1:3] == ["+3", "schemas that the operators here touch: 1"]
    assert rows[3][4:] == ["✓a ✓b ✓c ✗d", "anchor gone |"]
    assert "- torch 9.2.0, tier (d), anchor gone: Find where the list went." in text
    assert FOUND.where not in text and "torch.whl" not in text
    assert chain.render(matrix(subject())).endswith("## What needed a person\n\nNothing.\n")


def test_the_terminal_says_state_in_words(capfd: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    terminal.show(matrix(subject("9.2.0", fails="b")), Console(width=120))
    said = capfd.readouterr().out
    assert "FAILED 1.5 s" in said and "anchor gone" in said and "1 needs a person" in said


def test_tables_have_a_cell_for_every_subject() -> None:
    both = matrix(subject(), subject("9.2.0", fails="a"))
    assert [cell is None for cell in tables.patches(both)["torch/overrides.py"]] == [False, True]
    assert [cell and cell["state"] for cell in tables.operators(both)["swing"]] == [PASSED, FAILED]


FACTS = {
    "operators": 10, "tags": ["core"], "dispatch_keys": ["CPU"], "validations": ["a: assert x"],
    "touched": {"mul": "mul(Tensor a) -> Tensor"}, "templates": {"T.cpp": "1"},
}  # fmt: skip


def test_changes_say_only_what_changed() -> None:
    assert changes.between(FACTS, FACTS, "9")["sections"] == {}
    after = {
        **FACTS,
        "operators": 12,
        "touched": {"mul": "mul(Tensor a, int n) -> Tensor"},
        "templates": {"T.cpp": "2", "U.cpp": "1"},
        "tags": [],
        "validations": ["a: assert x", "b: raise Error"],
    }
    told = changes.between(FACTS, after, "9")
    assert told["operators"] == 2
    assert told["sections"] == {
        "touched": ["- mul(Tensor a) -> Tensor", "+ mul(Tensor a, int n) -> Tensor"],
        "templates": ["+ U.cpp", "~ T.cpp"],
        "validations": ["+ b: raise Error"],
        "enumerations": ["- tags: core"],
    }


def exporting(work: Path, name: str, exports: Sequence[str], **facts: Any) -> SubjectResult:
    """A subject whose libraries export these signatures."""
    told = {"operators": 1, "tags": [], "dispatch_keys": [], "touched": {}, "templates": {},
            "validations": [], "identity": name, **facts}  # fmt: skip
    files.write_bytes(exports_module.kept(name, work), gzip.compress("\n".join(exports).encode()))
    return replace(subject(name, fails="" if "needed" in facts else "d"), facts=told)


def test_symbols_that_upstream_hides_meanwhile_are_told_even_where_the_tier_failed(
    tmp_path: Path,
) -> None:
    exported = ["at::here()", "at::hidden()", "at::asked_before()"]
    local = "c10::thread_local_and_never_exported"
    before = exporting(tmp_path, "9.1.0", exported, needed=[*exported, local])
    needed = ["at::here()", "at::hidden()", local]
    after = exporting(tmp_path, "9.2.0", [*exported[:1]], needed=needed)
    failed = exporting(tmp_path, "9.3.0", ["at::here()"])
    pins = sample_wheel.releases(tmp_path / "releases.toml")
    found = cross_release.compare([before, after], pins, tmp_path)
    assert found[1].changes["sections"]["hidden"] == ["- at::hidden()"]
    # What a release that failed would need is not known: all that the one before it needed.
    (_, red) = cross_release.compare([before, failed], pins, tmp_path)
    assert red.changes["sections"]["hidden"] == ["- at::asked_before()", "- at::hidden()"]
    assert "hides now" in page.render(matrix(*found)) and "hidden()" in markdown.render(
        matrix(*found)
    )


def test_what_is_named_becomes_the_right_kind_of_subject(tmp_path: Path) -> None:
    pins = releases.load()
    words = [str(tmp_path), "nightly/torch-9.whl", "main", pins.default]
    found = targets.parse(words, pins, everything=False)
    assert [s.kind for s in found] == [
        targets.RELEASE, targets.TREE, targets.WHEEL, targets.REF,
    ]  # fmt: skip
    assert targets.parse([], pins, everything=True)[0].name == pins.versions[0]
    assert found[1].possible == "abc" and found[2].possible == "abcdef"


TOOLS = Toolchain("g++", "ccache", 8, True, None, "the base is a CPU build")


def test_a_toolkit_that_does_not_fit_leaves_cuda_out_of_a_check_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = sample.base(tmp_path, cuda="12.4")

    def find(_: object, env: dict[str, str]) -> Toolchain:
        if env.get("USE_CUDA") == "0":
            return TOOLS
        raise errors.ToolkitMismatchError("the CUDA toolkit is 13.0")

    monkeypatch.setattr(fast_compile.toolchain, "find", find)
    found = fast_compile.tools(base, {}, 2, final=False)
    assert found.cuda is None and found.cuda_note == "the CUDA toolkit is 13.0"
    assert found.jobs == 2 and found.launcher == TOOLS.launcher
    with pytest.raises(errors.ToolkitMismatchError):
        fast_compile.tools(base, {}, 2, final=True)


def test_a_check_compiles_cuda_for_one_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = Cuda(Path("nvcc"), "13.0", (), ("-gencode=a", "-gencode=b"))
    monkeypatch.setattr(fast_compile.toolchain, "find", lambda *_: replace(TOOLS, cuda=cuda))
    base = sample.base(tmp_path, cuda="13.0")
    found = fast_compile.tools(base, {}, 2, final=False).cuda
    assert found is not None and found.gencode == ("-gencode=a",)
    whole = fast_compile.tools(base, {}, 2, final=True).cuda
    assert whole is not None and len(whole.gencode) == 2


def test_vector_kernels_alone_are_given_the_missing_declarations() -> None:
    plain = CompileStep("a", "generated/A.cpp.o", "cxx", ("-O2",), False, False)
    vector = CompileStep(
        "b", "additions/native/cpu/B.cpp.AVX2.o", "cxx", ("-O3", "-mavx2"), False, True
    )
    checked = fast_compile.units([plain, vector], "vectors.h")
    assert checked[0].flags == ("-O0",)
    assert checked[1].flags == ("-O0", "-mavx2", "-include", "vectors.h")


class Sources:
    """Source files with their units, in a build directory."""

    def __init__(self, build: Path) -> None:
        self.build = build

    def unit(
        self, name: str, text: str = "", *flags: str, ours: bool = False, python: bool = False
    ) -> CompileStep:
        (self.build / f"{name}.cpp").write_text(text)
        top = "additions/native/cpu" if ours else "generated/autograd"
        given = ("-O0", *flags)
        return CompileStep(f"{name}.cpp", f"{top}/{name}.o", "cxx", given, python, ours)


def test_only_what_hides_nothing_is_compiled_as_one(tmp_path: Path) -> None:
    unit = Sources(tmp_path).unit
    together = [unit("Python", python=True), unit("A"), unit("B")]
    vectors = [unit(f"K{n}", "", "-mavx2", ours=True) for n in range(2)]
    alone = [
        unit("Kernel", ours=True),
        unit("Other", ours=True),
        unit("Wide", "", "-mavx512f", ours=True),
    ]
    found = fast_compile.unite([*together, *vectors, *alone], tmp_path)
    assert [u for u in found if not u.object.startswith("united/")] == alone
    generated, kernels = (u for u in found if u.object.startswith("united/"))
    assert (generated.ours, kernels.ours, kernels.flags) == (False, True, ("-O0", "-mavx2"))
    text = (tmp_path / generated.source).read_text()
    assert text.index('"A.cpp"') < text.index("#undef TORCH_ASSERT") < text.index('"B.cpp"')
    assert text.index('"B.cpp"') < text.index('"Python.cpp"')  # lends the others no header
    assert '#include "../K0.cpp"' in (tmp_path / kernels.source).read_text()


KERNEL = """\
void resize_out(const Tensor& out) {{}}
struct structured_swing_out final : public at::{space}::structured_swing_out {{}};
at::Tensor wrapper_{space}_swing() {{ structured_swing_out op; resize_out(op.out()); }}
"""
BINDING = """\
static PyObject * THPVariable_swing(PyObject* self) {{ return THPVariable_Wrap({how}); }}
static PyMethodDef torchfork_methods[] = {{ {{"swing", THPVariable_swing}} }};
"""


def test_what_files_define_under_one_name_gets_names_of_its_own(tmp_path: Path) -> None:
    unit = Sources(tmp_path).unit
    kernels = [unit(f"Register{key}", KERNEL.format(space=key)) for key in ("CPU", "Meta")]
    bindings = [unit(how, BINDING.format(how=how), python=True) for how in ("called", "bound")]
    (made,) = fast_compile.unite([*kernels, *bindings], tmp_path)
    text = (tmp_path / made.source).read_text()
    for number, space in enumerate(("CPU", "Meta")):
        own = f"structured_swing_out_{number}"
        assert f"struct {own} final : public at::{space}::structured_swing_out {{" in text
        assert f"{{ {own} op; resize_out_{number}(op.out()); }}" in text
        assert f"void resize_out_{number}(" in text
    for number, how in enumerate(("called", "bound"), start=2):
        own = f"THPVariable_swing_{number}"
        assert f"{own}(PyObject* self) {{ return THPVariable_Wrap({how}); }}" in text
        assert f'torchfork_methods_{number}[] = {{ {{"swing", {own}}} }};' in text


def test_advice_names_only_options_that_there_are() -> None:
    parser = argparse.ArgumentParser()
    rebase.add_arguments(parser)
    known = {*parser.format_help().split(), "--debug"}  # which every command has
    named = set(re.findall(r"--[a-z]+", " ".join(findings.KINDS.values())))
    assert {"--to", "--work"} <= named <= known


def test_exported_names_are_read_from_a_macos_library(tmp_path: Path) -> None:
    names = [("__ZN2at3addEv", 0x0F), ("__ZN2at4hereEv", 0x1F), ("__ZN2at4lostEv", 0x01)]
    table, text = b"", b"\0"
    for name, kind in names:
        table += struct.pack("<IBBHQ", len(text), kind, 1, 0, 8)
        text += name.encode() + b"\0"
    start = 32 + 24
    command = struct.pack("<IIIIII", 2, 24, start, len(names), start + len(table), len(text))
    header = macho.MAGIC + struct.pack("<IIIIIII", 0, 0, 6, 1, len(command), 0, 0)
    library = tmp_path / "lib.dylib"
    library.write_bytes(header + command + table + text)
    assert macho.is_macho(library)
    assert macho.exported(library) == {"_ZN2at3addEv"}
