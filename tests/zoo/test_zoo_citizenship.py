"""`torchfork citizenship` on additions that it has never seen: their samples and reasons."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
OPERATORS = ("zoo_softclip", "zoo_muladd", "zoo_cpu_only")
ITEMS = (
    "Python builtin", "Tensor method", "autograd node by its name", "gradcheck", "forward-mode AD",
    "opcheck", "FakeTensor, meta: same strides", "SymInt shapes: one graph", "docstring in help()",
)  # fmt: skip
EXPLAINED = {
    "zoo_softclip": {"docstring in help()"},
    "zoo_muladd": {"docstring in help()"},
    "zoo_cpu_only": {
        "opcheck", "FakeTensor, meta: same strides", "SymInt shapes: one graph",
        "docstring in help()",
    },
}  # fmt: skip
# By their declarations: no formula.
NOT_APPLICABLE: dict[str, set[str]] = {
    "zoo_softclip": set(),
    "zoo_muladd": set(),
    "zoo_cpu_only": {"autograd node by its name", "gradcheck", "forward-mode AD"},
}


def test_operators_that_nobody_foresaw_are_checked_with_their_own_samples(tmp_path: Path) -> None:
    arguments = [f"--operator={name}" for name in OPERATORS] + [f"--item={i}" for i in ITEMS]
    table = tmp_path / "table.json"
    done = subprocess.run(
        [str(PROJECT / "scripts" / "torchfork"), "citizenship", "--env", sys.executable,
         "--additions", str(PROJECT / "tests" / "zoo" / "additions"), "--device", "cpu",
         "--json", str(table), *arguments],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    cells = json.loads(table.read_text())["cells"]
    assert len(cells) == len(OPERATORS) * len(ITEMS)
    for name in OPERATORS:
        states = {c["item"]: c["state"] for c in cells if c["operator"] == name}
        assert {i for i, s in states.items() if s == "explained"} == EXPLAINED[name]
        assert {i for i, s in states.items() if s == "na"} == NOT_APPLICABLE[name]
        assert set(states.values()) <= {"full", "explained", "na"}
