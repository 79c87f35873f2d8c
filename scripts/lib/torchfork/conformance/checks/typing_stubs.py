"""Type checkers on programs that call the operators: right calls pass, wrong ones are named."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .operators import Operator
from .programs import source
from .samples import Sample, Source

_NUMBER = re.compile(r"^.*?program\.py:(\d+): error: (.*)$")


def program(operators: Sequence[Operator], samples: Source) -> tuple[str, dict[int, str], set[int]]:
    """A program, the operator that each of its lines is about, and the lines that are wrong."""
    lines = ["import torch", ""]
    about: dict[int, str] = {}
    wrong: set[int] = set()
    for number, op in enumerate(operators):
        for way, text in _calls(op, samples):
            lines += ["", f"def f{number}_{way}({text[0]}) -> object:"]
            for line in text[1]:
                lines.append(f"    {line}")
                about[len(lines)] = op.id
            lines.append(f"    {text[2]}")
            about[len(lines)] = op.id
            wrong.add(len(lines))
            lines.append(f"    {text[3]}")
            about[len(lines)] = op.id
    return "\n".join(lines) + "\n", about, wrong


def _calls(op: Operator, samples: Source) -> list[tuple[str, tuple[str, list[str], str, str]]]:
    """For each way to call: parameters, lines before, a wrong call, the right one's return."""
    if not op.bound:
        return []
    sample: Sample = samples.typical(op, "cpu", limit=1)[0]
    found = []
    if op.function is not None:
        name = f"torch.{op.home}{op.name}"
        found.append(("function", _told(op, sample, name, f"{name}(no_such_argument=object())")))
    if op.method is not None:
        text = _told(op, sample, f"torch.Tensor.{op.name}", f"t0.{op.name}(no_such_argument=0)")
        found.append(("method", text))
    return found


def _told(op: Operator, sample: Sample, call: str, wrong: str) -> tuple[str, list[str], str, str]:
    text, _ = source(op, sample, call)
    head, _, rest = text.partition("def program(")[2].partition("):\n")
    body = [line.strip() for line in rest.partition("\n\n\nclass")[0].strip().splitlines()]
    return head, body[:-1], wrong, body[-1]


def mypy(operators: Sequence[Operator], samples: Source, scratch: Path, extras: str) -> Any:
    """What mypy says of each operator."""
    file, about, wrong = _written(operators, samples, scratch / "mypy")
    command = [
        sys.executable, "-m", "mypy", "--python-executable", sys.executable, "--config-file", "",
        "--cache-dir", str(file.parent / "cache"), "--no-color-output", "--no-error-summary",
        "--follow-imports", "silent", str(file),
    ]  # fmt: skip
    environment = {**os.environ, **({"PYTHONPATH": extras} if extras else {})}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=file.parent, env=environment
    )
    found = [match for line in done.stdout.splitlines() if (match := _NUMBER.match(line))]
    # 1 is the verdict that something is wrong, and what Python gives where there is no mypy.
    if done.returncode not in (0, 1) or (done.returncode and not found):
        return {"unavailable": f"mypy cannot be run: {(done.stdout + done.stderr).strip()[-200:]}"}
    return _verdicts(operators, about, wrong, {int(m[1]): m[2] for m in found})


def pyright(operators: Sequence[Operator], samples: Source, scratch: Path, extras: str) -> Any:
    """What pyright says of each operator."""
    checker = shutil.which("pyright") or shutil.which("basedpyright")
    if checker is None:
        return {"unavailable": "pyright is not on the path"}
    file, about, wrong = _written(operators, samples, scratch / "pyright")
    # A project of its own: of one around it (a pyproject.toml above) this would be a hidden folder,
    # which pyright passes over without a word.
    settings = {"include": [file.name], "exclude": []}
    (file.parent / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [
        checker, "--outputjson", "--pythonpath", sys.executable, "--project", str(file.parent),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=file.parent)
    try:
        told = json.loads(done.stdout)
        diagnostics, analyzed = told["generalDiagnostics"], told["summary"]["filesAnalyzed"]
    except (ValueError, KeyError):
        return {"unavailable": f"pyright cannot be run: {done.stderr.strip()[-200:]}"}
    if not analyzed:
        return {"unavailable": f"pyright looked at no file: run it in {file.parent}"}
    found = {d["range"]["start"]["line"] + 1: d["message"] for d in diagnostics
             if d["severity"] == "error"}  # fmt: skip
    return _verdicts(operators, about, wrong, found)


def _written(
    operators: Sequence[Operator], samples: Source, directory: Path
) -> tuple[Path, dict[int, str], set[int]]:
    directory.mkdir(parents=True, exist_ok=True)
    text, about, wrong = program(operators, samples)
    file = directory / "program.py"
    file.write_text(text, encoding="utf-8")
    return file, about, wrong


def _verdicts(
    operators: Sequence[Operator], about: dict[int, str], wrong: set[int], found: dict[int, str]
) -> dict[str, Any]:
    """A complaint for each operator, '' for none."""
    told = dict.fromkeys((op.id for op in operators), "")
    for line, op in about.items():
        if line in wrong and line not in found:
            told[op] = told[op] or "a call with an argument that does not exist passes"
        elif line not in wrong and line in found:
            told[op] = told[op] or found[line]
    return {"operators": told}
