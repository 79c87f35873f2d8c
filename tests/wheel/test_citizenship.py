"""`torchfork citizenship` on the wheel under test: the table, crashes, reasons, exit codes."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from subject import PROJECT, Subject

pytestmark = pytest.mark.overlay

COMMAND = PROJECT / "scripts" / "torchfork"
SCHEMA, NODE = "schema in torch.ops.aten", "autograd node by its name"


@pytest.fixture(scope="module")
def lent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the command keeps what it lends to the environment."""
    return tmp_path_factory.mktemp("citizenship")


def run(
    subject: Subject, work: Path, *arguments: str | Path, additions: Path = PROJECT
) -> tuple[int, str, dict[str, Any]]:
    """The command's exit code, what it printed, and its JSON."""
    table = work / "table.json"
    table.unlink(missing_ok=True)
    command = [COMMAND, "citizenship", "--env", subject.python, "--additions", additions,
               "--work", work, "--json", table, *arguments]  # fmt: skip
    done = subprocess.run(
        [str(part) for part in command], cwd=subject.neutral, env=subject.environment(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    seen = json.loads(table.read_text()) if table.exists() else {}
    return done.returncode, done.stdout + done.stderr, seen


@pytest.fixture
def some_additions(tmp_path: Path) -> Path:
    """The project's YAML, to which a test adds files of its own."""
    for name in ("native_functions_additions.yaml", "derivatives_additions.yaml"):
        shutil.copy(PROJECT / name, tmp_path)
    return tmp_path


def test_an_operator_of_ours_has_everything(subject: Subject, lent: Path) -> None:
    code, text, seen = run(subject, lent, "--operator", "sigmoid_ext")
    assert code == 0, text
    states = {cell["item"]: cell["state"] for cell in seen["cells"]}
    assert len(states) > 40 and "gap" not in states.values()
    # Of these a machine that builds wheels can tell everything.
    known_here = ("C++ from CMake", "AOTInductor package", "vmap: a batch rule", "type stubs: mypy",
                 "torch.compile: inductor", "OpInfo in op_db", "in-place", "out=")  # fmt: skip
    assert {states[item] for item in known_here} == {"full"}
    assert states["CUDA graphs"] in ("full", "unavailable")
    assert all(len(line) <= 100 for line in text.splitlines() if "✓" in line)


def test_operators_are_those_of_the_additions_and_their_natures_are_kept_apart(
    subject: Subject, lent: Path
) -> None:
    code, text, seen = run(subject, lent, "--item", NODE, "--item", "Tensor method")
    assert code == 0, text
    states = {(c["operator"], c["item"]): c["state"] for c in seen["cells"]}
    assert len(seen["operators"]) == 9 and len(states) == 18
    assert states["gdh", NODE] == "na" and states["gdh", "Tensor method"] == "full"
    assert states["lltm_cell_backward", NODE] == "full"
    assert states["lltm_cell", "Tensor method"] == "na"


def test_a_crash_in_an_operator_is_a_red_cell(
    subject: Subject, lent: Path, some_additions: Path
) -> None:
    (some_additions / "samples.py").write_text(
        "import ctypes\n\n\ndef gdh(make):\n    yield ctypes.string_at(0)\n"
    )
    code, text, seen = run(
        subject, lent, "--operator", "gdh", "--operator", "axpy_ext", "--item", SCHEMA,
        "--item", "Tensor method", additions=some_additions,
    )  # fmt: skip
    assert code == 42
    states = {(c["operator"], c["item"]): (c["state"], c["why"]) for c in seen["cells"]}
    assert states["gdh", SCHEMA] == ("gap", "ended by signal 11 (SIGSEGV)")
    assert states["gdh", "Tensor method"][0] == "gap"
    assert states["axpy_ext", SCHEMA][0] == "full", text


def test_a_torch_without_the_operators_is_refused(
    subject: Subject, lent: Path, some_additions: Path
) -> None:
    with (some_additions / "native_functions_additions.yaml").open("a") as yaml:
        yaml.write("\n- func: not_built(Tensor self) -> Tensor\n")
    code, text, _ = run(subject, lent, "--item", SCHEMA, additions=some_additions)
    assert code == 23 and "not_built" in text
