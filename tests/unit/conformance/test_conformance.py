"""The table of conformance: its cells, explanations, exit code, and workers that die."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from rich.console import Console
from sample_files import lay, program
from sample_manifest import operator

from torchfork import cli
from torchfork.additions.load import GAPS
from torchfork.additions.load import load as load_additions
from torchfork.codegen.model import FinishedOperator, OperatorGroup
from torchfork.commands import conformance
from torchfork.conformance import plan, run
from torchfork.conformance import table as tables
from torchfork.conformance.checks.worker import Job
from torchfork.conformance.run import Workers
from torchfork.conformance.table import (
    EXPLAINED,
    FULL,
    GAP,
    NOT_APPLICABLE,
    SIGNS,
    STALE,
    UNAVAILABLE,
    Cell,
    Explanation,
    Table,
    show,
)
from torchfork.errors import (
    AdditionsError,
    BaseRefusedError,
    CitizenshipError,
    UsageError,
    VerificationError,
)

ITEMS = ("gradcheck", "vmap: a batch rule", "CUDA graphs")
OPERATORS = ("twice", "thrice")


def table(*cells: Cell, explanations: tuple[str, ...] = ()) -> Table:
    return Table("2.13.0+cpu.ext1", "/site/torch", ("cpu",), OPERATORS, ITEMS, cells, explanations)


def shown(made: Table) -> str:
    sink = io.StringIO()
    show(made, Console(file=sink, width=100, highlight=False, color_system=None))
    return sink.getvalue()


MIXED = (
    Cell("twice", "gradcheck", FULL),
    Cell("twice", "vmap: a batch rule", GAP, "no batching rule"),
    Cell("twice", "CUDA graphs", UNAVAILABLE, "no GPU on this machine"),
    Cell("thrice", "gradcheck", NOT_APPLICABLE, "no derivative formula"),
    Cell("thrice", "vmap: a batch rule", EXPLAINED, "nobody maps it [no batching rule]"),
    Cell("thrice", "CUDA graphs", STALE, "delete that"),
)


def test_each_state_has_a_sign_gaps_are_shown_whole_and_what_cannot_be_checked_once() -> None:
    assert len({sign for sign, _, _ in SIGNS.values()}) == len(SIGNS)
    text = shown(table(*MIXED))
    rows = [row for row in text.splitlines() if row.startswith(ITEMS)]
    signs = {row.split("  ")[0]: row.split()[-2:] for row in rows}
    assert signs == {ITEMS[0]: ["✓", "·"], ITEMS[1]: ["✗", "e"], ITEMS[2]: ["?", "!"]}
    assert "twice, vmap: a batch rule: no batching rule" in text
    assert "thrice, vmap: a batch rule: nobody maps it" in text
    assert text.count("no GPU on this machine") == 1
    assert "✓ 1 full, e 1 explained gap, ✗ 1 gap, ! 1 stale" in text


def test_a_table_of_many_operators_keeps_to_a_hundred_columns() -> None:
    names = tuple(f"an_operator_with_a_long_name_{k}" for k in range(60))
    cells = [Cell(name, item, FULL) for name in names for item in ITEMS]
    made = replace(table(*cells), operators=names)
    lines = shown(made).splitlines()
    assert max(map(len, lines)) <= 100
    assert all(f"{k + 1} {name}" in "\n".join(lines) for k, name in enumerate(names))
    assert sum(line.count("✓") for line in lines if line.startswith(ITEMS)) == 180


def test_the_json_has_every_cell_and_the_counts() -> None:
    written = json.loads(json.dumps(table(*MIXED).to_json()))
    assert written["counts"] == dict.fromkeys(SIGNS, 1)
    assert [(c["operator"], c["item"], c["state"]) for c in written["cells"]] == [
        (c.operator, c.item, c.state) for c in MIXED
    ]
    assert written["torch"] == {"version": "2.13.0+cpu.ext1", "file": "/site/torch"}


@pytest.mark.parametrize(
    ("cells", "complaints", "red"),
    [
        ((MIXED[0], MIXED[2], MIXED[3], MIXED[4]), (), False),
        ((MIXED[0], MIXED[1]), (), True),
        ((MIXED[0], MIXED[5]), (), True),
        ((MIXED[0],), ("citizenship.toml: there is no operator 'x'",), True),
    ],
)
def test_only_unexplained_gaps_and_stale_explanations_end_the_command_red(
    cells: tuple[Cell, ...], complaints: tuple[str, ...], red: bool, tmp_path: Path
) -> None:
    made, file = table(*cells, explanations=complaints), tmp_path / "table.json"
    expected = pytest.raises(CitizenshipError) if red else contextlib.nullcontext()
    with expected as error:
        conformance.report(made, file, explained_in=tmp_path / "citizenship.toml")
    if red:
        assert error.value.exit_code == 42 and "citizenship.toml" in error.value.next
    assert len(json.loads(file.read_text())["cells"]) == len(cells)


def explain(operator: str, item: str, torch: str = "", device: str = "") -> Explanation:
    return Explanation((operator,), (item,), "a reason", SpecifierSet(torch), device)


TWICE = explain("twice", "gradcheck")


@pytest.mark.parametrize(
    ("state", "entry", "version", "becomes"),
    [
        (GAP, TWICE, "2.13.0+cpu", EXPLAINED),
        (GAP, explain("twice", "opcheck"), "2.13.0+cpu", GAP),
        (GAP, explain("thrice", "gradcheck"), "2.13.0+cpu", GAP),
        (FULL, TWICE, "2.13.0+cpu", STALE),
        (NOT_APPLICABLE, TWICE, "2.13.0+cpu", STALE),
        (UNAVAILABLE, TWICE, "2.13.0+cpu", UNAVAILABLE),
        (GAP, explain("twice", "gradcheck", "<2.7"), "2.6.0+cpu.ext1", EXPLAINED),
        (GAP, explain("twice", "gradcheck", "<2.7"), "2.13.0+cpu.ext1", GAP),
        (GAP, explain("twice", "gradcheck", ">=2.13"), "2.13.0a0+gitabc", EXPLAINED),
        (GAP, explain("twice", "gradcheck", device="cuda"), "2.13.0", GAP),
        (GAP, explain("twice", "gradcheck", device="cpu"), "2.13.0", EXPLAINED),
    ],
)
def test_a_reason_is_for_its_gap_alone_and_stale_where_there_is_none(
    state: str, entry: Explanation, version: str, becomes: str
) -> None:
    (cell,) = tables.apply([Cell("twice", "gradcheck", state, "seen")], [entry], version, ["cpu"])
    whys = {EXPLAINED: "a reason [seen]", STALE: "delete that"}
    assert cell.state == becomes and whys.get(becomes, "seen") in cell.why


def test_reasons_for_what_is_not_there_are_complained_of() -> None:
    entries = [explain("twice", "gradchek"), explain("fourfold", "gradcheck")]
    assert tables.unknown(entries, OPERATORS, ITEMS) == [
        "citizenship.toml: there is no item 'gradchek'",
        "citizenship.toml: there is no operator 'fourfold'",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "[[gap]\n",
        "[gaps]\nx = 1\n",
        '[[gap]]\noperator = "twice"\nitem = "gradcheck"\n',
        '[[gap]]\noperator = "twice"\nwhy = "no"\n',
        '[[gap]]\noperator = "twice"\nitem = "x"\nwhy = "y"\nreason = "z"\n',
        '[[gap]]\noperator = "twice"\nitem = "x"\nwhy = "y"\ntorch = "new"\n',
    ],
)
def test_a_malformed_file_of_reasons_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / GAPS).write_text(text)
    with pytest.raises(AdditionsError, match=GAPS):
        tables.load(tmp_path)


def test_reasons_are_read_one_or_several_at_once(tmp_path: Path) -> None:
    assert tables.load(tmp_path) == ()
    (tmp_path / GAPS).write_text(
        '[[gap]]\noperator = ["a", "b.c"]\nitem = "x"\nwhy = "y"\ntorch = "<2.8"\ndevice = "cuda"\n'
    )
    assert tables.load(tmp_path) == (
        Explanation(("a", "b.c"), ("x",), "y", SpecifierSet("<2.8"), "cuda"),
    )


def test_a_page_of_documentation_lists_what_is_in_its_autosummaries() -> None:
    text = """\
.. currentmodule:: torch

.. autosummary::
    :toctree: generated

    twice
    Tensor.twice

    not_a_heading

Prose that is not listed.

.. currentmodule:: torch.special
.. autosummary::
    ~thrice
"""
    assert list(plan.page_entries(text)) == [
        "torch.twice", "torch.Tensor.twice", "torch.not_a_heading", "torch.special.thrice",
    ]  # fmt: skip


def entry(name: str, **changes: Any) -> FinishedOperator:
    plain = asdict(operator(f"{name}(Tensor self) -> Tensor"))
    calls = {"signature": name.removesuffix("_"), "cpp_function": None, "cpp_method": None}
    return FinishedOperator(**{**plain, **calls, **changes})


NATIVE = """
- func: twice(Tensor self, int[2] pad=[0,0], *, Scalar by=2) -> Tensor
  autogen: twice.out
- func: twice_(Tensor(a!) self, int[2] pad=[0,0], *, Scalar by=2) -> Tensor(a!)
- func: hypot.zoo(Tensor self) -> (Tensor low, Tensor high)
- func: fill_ramp_(Tensor(a!) self) -> Tensor(a!)
  autogen: fill_ramp, fill_ramp.out
"""
DERIVATIVES = """
- name: twice(Tensor self, int[2] pad=[0,0], *, Scalar by=2) -> Tensor
  self: grad * by
- name: hypot.zoo(Tensor self) -> (Tensor low, Tensor high)
  self: grads[0]
  low: self_t
- name: fill_ramp_(Tensor(a!) self) -> Tensor(a!)
  self: non_differentiable
"""


@pytest.fixture
def additions(tmp_path: Path) -> Any:
    (tmp_path / "native_functions_additions.yaml").write_text(NATIVE)
    (tmp_path / "derivatives_additions.yaml").write_text(DERIVATIVES)
    return load_additions(tmp_path)


def test_variants_are_one_operator_and_a_generated_group_is_none(additions: Any) -> None:
    names = ["twice", "twice.out", "twice_", "hypot.zoo", "fill_ramp_", "fill_ramp",
             "fill_ramp.out"]  # fmt: skip
    assert sorted(plan.declared(additions)) == sorted(names)
    found = [
        entry("fill_ramp", generated=True),
        entry("fill_ramp", overload="out", kind="out", generated=True),
        entry("fill_ramp_", kind="inplace"),
        entry("hypot", overload="zoo"),
        entry("twice", overload="out", kind="out", generated=True),
        entry("twice_", kind="inplace"),
        entry("twice"),
        entry("twice_functional", generated=True),
    ]
    made = plan.grouped(found[:-1], additions)
    assert [o.entry.qualified for o in made] == ["twice", "hypot.zoo", "fill_ramp_"]
    assert sorted(e.qualified for e in made[0].variants) == ["twice.out", "twice_"]
    assert plan.grouped(found[-1:], additions) == []


def test_operators_for_other_releases_are_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    lay(site, {"torch/__init__.py": "", "torchgen/__init__.py": ""})
    python = program(tmp_path / "python", f'PYTHONPATH="{site}" exec {sys.executable} "$@"')
    (tmp_path / "native_functions_additions.yaml").write_text(
        "- func: swing(Tensor self) -> Tensor\n"
        '- func: sway(Tensor self) -> Tensor\n  torch: "<2.15"\n'
    )

    def described(home: Path, names: list[str], *others: object) -> list[FinishedOperator]:
        return [entry(name) for name in names]

    monkeypatch.setattr("torchfork.codegen.client.describe_finished", described)
    for version, names in (("2.15.0", ("swing",)), ("2.14.0", ("swing", "sway"))):
        text = f"__version__ = '{version}'\ngit_version = 'c0'\n"
        (site / "torch/version.py").write_text(text)
        assert plan.make(load_additions(tmp_path), python, tmp_path / "scratch").names == names


def test_formulas_tell_gradients_and_forward_mode_apart(additions: Any) -> None:
    assert plan.formulas([entry("twice")], additions) == (True, False)
    assert plan.formulas([entry("hypot", overload="zoo")], additions) == (True, True)
    assert plan.formulas([entry("fill_ramp_")], additions) == (False, False)
    assert plan.formulas([entry("hypot")], additions) == (False, False)


# A stand-in for the worker: what it does with each cell is the cell's item.
PROGRAM = """
import json, os, signal, sys, time
sys.path.append(sys.argv[1])
from torchfork.conformance.checks.worker import end_after, write
job = json.load(open(sys.argv[2]))
if job["samples"] == "dead":
    sys.exit("ImportError: no torch here")
write("torch", version="2.13.0", file="torch", devices=["cpu"],
      items=[[i, ""] for i in ("full", "gap", "crash", "hang", "once")] + [["built", "task"]])
if job["task"]:
    if job["samples"] == "task dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    write("task", task=job["task"], result={"operators": {"twice": "built"}})
    sys.exit()
for number, (operator, item) in enumerate(job["cells"]):
    print("checks print", end="")
    write("begin", operator=operator, item=item)
    end_after(job["timeout"])
    if item == "crash" or (item == "once" and number):
        os.kill(os.getpid(), signal.SIGSEGV)
    if item == "hang":
        time.sleep(600)
    state = "gap" if item == "gap" else "full"
    why = str(job["prepared"].get("task", {}).get("operators", {}).get(operator, ""))
    write("end", operator=operator, item=item, state=state, why=why, seconds=0.1)
"""


JOB = Job(operators=[], samples="", documented=[], devices=[], extras="", scratch="", timeout=3.0)


@pytest.fixture
def standing_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Workers:
    monkeypatch.setattr(run, "_BOOT", PROGRAM)
    return Workers(Path(sys.executable), tmp_path / "scratch", JOB)


def checked(at: Workers, *items: str) -> list[tuple[str, str]]:
    cells = at.cells([("twice", item) for item in items], {})
    assert [cell.item for cell in cells] == list(items)
    return [(cell.state, cell.why) for cell in cells]


@pytest.mark.parametrize(
    ("items", "cells"),
    [
        (("full", "crash", "gap", "full"),
         [(FULL, ""), (GAP, "ended by signal 11 (SIGSEGV)"), (GAP, ""), (FULL, "")]),
        (("hang", "full"), [(GAP, "it did not finish within 3 s"), (FULL, "")]),
    ],
)  # fmt: skip
def test_a_crash_or_a_hang_is_a_red_cell_that_says_so_and_the_others_are_checked(
    standing_in: Workers, items: tuple[str, ...], cells: list[tuple[str, str]]
) -> None:
    assert checked(standing_in, *items) == cells


def test_a_crash_that_does_not_come_back_is_red_all_the_same(standing_in: Workers) -> None:
    cells = checked(standing_in, "full", "once", "full")
    assert cells[1][0] == GAP and "by itself" in cells[1][1] and "SIGSEGV" in cells[1][1]
    assert [cells[0][0], cells[2][0]] == [FULL, FULL]


def test_a_torch_that_cannot_be_imported_is_reported_as_it_ended(standing_in: Workers) -> None:
    standing_in.job = replace(JOB, samples="dead")
    with pytest.raises(VerificationError, match="no torch here"):
        standing_in.torch()
    cells = checked(standing_in, "full", "gap")
    assert all(state == GAP and "no torch here" in why for state, why in cells)


def whole(at: Workers, *, chosen: run.Chosen | None = None) -> Table:
    planned = plan.Plan(
        tuple(OperatorGroup(entry(n), (), False, False) for n in OPERATORS), None, ()
    )
    only = chosen or run.Chosen((), ("full", "gap", "built"))
    return run.run(planned, at, [explain("thrice", "gap")], only, 2, lambda *_: None)


def test_a_run_checks_every_operator_with_what_was_done_for_all(standing_in: Workers) -> None:
    made = whole(standing_in)
    assert [c.state for c in made.sorted_cells()] == [FULL, GAP, FULL, FULL, EXPLAINED, FULL]
    cell = made.cell("twice", "built")
    assert cell is not None and cell.why == "built"
    assert made.red


def test_a_task_that_dies_leaves_the_rest_to_be_checked(standing_in: Workers) -> None:
    standing_in.job = replace(JOB, samples="task dies")
    assert "SIGSEGV" in str(standing_in.task("task"))
    assert len(whole(standing_in).cells) == 6


def test_an_item_that_is_not_there_is_refused(standing_in: Workers) -> None:
    with pytest.raises(UsageError, match="there is no item 'x'"):
        whole(standing_in, chosen=run.Chosen((), ("x",)))


def test_an_operator_that_is_not_declared_is_refused_before_a_torch_is_looked_for(
    additions: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["citizenship", "--additions", str(tmp_path), "--env", "/nowhere", "--operator"]
    assert cli.main([*command, "hypott"]) == UsageError.exit_code
    said = capsys.readouterr().err
    assert "no operator 'hypott'" in said and "hypot.zoo" in said
    for name in ("hypot", "hypot.zoo", "twice", "twice.out"):
        plan.require_declared(additions, [name])


def test_an_operator_is_found_by_its_base_name_and_by_a_variants(additions: Any) -> None:
    found = [entry("hypot", overload="zoo"), entry("hypot", overload="b", signature="other"),
             entry("twice"), entry("twice_", kind="inplace"),
             entry("twice", overload="out", kind="out", generated=True)]  # fmt: skip
    functions = {operator.qualified: operator for operator in found}
    groups = ((functions["hypot.zoo"], ()), (functions["hypot.b"], ()),
              (functions["twice"], tuple(found[3:])))  # fmt: skip
    made = plan.Plan(tuple(OperatorGroup(*group, False, False) for group in groups), None, ())
    assert made.matching([]) == ["hypot.zoo", "hypot.b", "twice"]
    assert made.matching(["hypot"]) == ["hypot.zoo", "hypot.b"]
    assert made.matching(["hypot.b", "twice_"]) == ["hypot.b", "twice"]
    assert made.matching(["twice.out"]) == ["twice"]


def test_an_environment_is_named_by_its_directory_or_its_interpreter(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for wrong in (tmp_path, tmp_path / "gone"):
        with pytest.raises(UsageError, match=f"there is no {wrong}"):
            plan.of_environment(str(wrong))
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    with pytest.raises(BaseRefusedError, match="not named as a wheel is"):
        plan.of_wheel(tmp_path / "bin" / "python", None, tmp_path, print)
    by_directory = plan.of_environment(str(tmp_path))
    assert by_directory == plan.of_environment(str(tmp_path / "bin" / "python"))
