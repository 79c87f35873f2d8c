"""The order of the rooms: who may import whom, and what each may know."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
LIB = PROJECT / "scripts" / "lib"
PACKAGE = LIB / "torchfork"
MODULES = sorted(PACKAGE.rglob("*.py"))

# A room may import from the rooms before it, and from itself.
ROOMS = (
    "errors", "util", "upstream", "additions", "codegen", "edits", "native", "state", "wheel",
    "pipelines", "rebase", "conformance", "commands", "cli", "__main__",
)  # fmt: skip
ORDER = {name: number for number, name in enumerate(ROOMS)}


def name_of(path: Path) -> str:
    """A module's path below the package without its suffix: 'native/link'."""
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


def rank(name: str) -> int:
    return ORDER[name.split("/")[0]]


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """The package's modules that a module imports, at any depth of its code."""
    folder = path.parent.relative_to(PACKAGE).parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = folder[: len(folder) - node.level + 1]
            start = [*above, *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                yield from _resolved([*start, alias.name], node.lineno)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchfork"):
            for alias in node.names:
                parts = [*str(node.module).split(".")[1:], alias.name]
                yield from _resolved(parts, node.lineno)


def _resolved(parts: list[str], line: int) -> Iterator[tuple[str, int]]:
    """The module that 'a.b.name' means: a.b.name itself, or a.b that has the name."""
    for end in (len(parts), len(parts) - 1):
        stem = PACKAGE.joinpath(*parts[:end])
        if end and (stem.with_suffix(".py").is_file() or (stem / "__init__.py").is_file()):
            yield "/".join(parts[:end]), line
            return


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_dependencies_point_one_way(path: Path) -> None:
    name = name_of(path)
    if name == "__init__":
        assert not list(imports(path))
        return
    wrong = [
        f"{name}:{line} imports {other}"
        for other, line in imports(path)
        if rank(other) > rank(name)
    ]
    assert not wrong


def test_the_import_reader_sees_what_is_there() -> None:
    """The tests here would all pass if it saw nothing, or a module were in no room."""
    assert {name_of(path).split("/")[0] for path in MODULES} - {"__init__"} == set(ORDER)
    seen = {other for other, _ in imports(PACKAGE / "pipelines" / "graft.py")}
    assert {"additions/load", "native/ninja", "additions/merge", "util/files", "util/ui"} <= seen
    assert {other for other, _ in imports(PACKAGE / "util" / "files.py")} == {"errors"}


def test_checks_know_nothing_of_the_tooling() -> None:
    """They are imported by an interpreter that has none of the tools' packages.

    The model that they share with the code generator's client is data, and imports nothing.
    """
    known = {*sys.stdlib_module_names, "torch", "__future__"}
    model = PACKAGE / "codegen" / "model.py"
    modules = [model, *sorted((PACKAGE / "conformance" / "checks").glob("*.py"))]
    wrong = [
        f"{name_of(path)}:{node.lineno}"
        for path in modules
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (
            isinstance(node, ast.Import)
            and {alias.name.split(".")[0] for alias in node.names} - known
        )
        or (
            isinstance(node, ast.ImportFrom)
            and (node.level, node.module) != (3, "codegen.model")
            and (node.level > 1 or (not node.level and str(node.module).split(".")[0] not in known))
        )
    ]
    assert len(modules) > 10 and not wrong


def operator_names() -> list[str]:
    entries = yaml.safe_load((PROJECT / "native_functions_additions.yaml").read_text())
    names = {entry["func"].partition("(")[0].partition(".")[0] for entry in entries}
    assert len(names) >= 4
    return sorted(names)


def test_nothing_in_the_tooling_names_an_operator_of_ours() -> None:
    word = re.compile(r"\b(" + "|".join(map(re.escape, operator_names())) + r")(?![a-z0-9])")
    files = [p for folder in ("scripts", "ci") for p in sorted((PROJECT / folder).rglob("*"))]
    texts = [p for p in files if p.is_file() and "__pycache__" not in p.parts]
    found = [
        f"{path.relative_to(PROJECT)}:{number}: {line.strip()}"
        for path in texts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if word.search(line)
    ]
    assert len(texts) > 60 and not found


# What may stand at the top of a module: definitions and constants. No calls that do anything.
HARMLESS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_says_what_it_owns_and_nothing_happens_at_import(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree) or not tree.body
    for node in tree.body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        # `if TYPE_CHECKING`, `if sys.version_info`, `if __name__ == "__main__"`
        condition = isinstance(node, ast.If)
        assert docstring or condition or isinstance(node, HARMLESS), f"{path}:{node.lineno}"


def test_importing_everything_reads_no_file_of_the_user_and_runs_no_program() -> None:
    program = """
import importlib, pathlib, sys
# What others do when they are imported is theirs.
import cattrs, elftools.elf.elffile, ninja, packaging.version, rich.progress, yaml
names = sys.argv[1:]
seen = []
def hook(event, args):
    if event in {"subprocess.Popen", "os.system", "socket.connect", "os.mkdir", "os.remove"}:
        seen.append((event, str(args)[:200]))
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        seen.append((event, str(args)[:200]))
sys.dont_write_bytecode = True
sys.addaudithook(hook)
for name in names:
    importlib.import_module(name)
assert not seen, seen
"""
    names = [f"torchfork.{name_of(path)}".replace("/", ".") for path in MODULES]
    # Programs for other interpreters: importing the one is running it, the others import torch.
    others = ("wheel.probe", ".checks.")
    names = [n.removesuffix(".__init__") for n in names if not any(o in n for o in others)]
    done = subprocess.run(
        [sys.executable, "-c", program, *names], env={"PYTHONPATH": str(LIB), "PATH": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_build_with_nothing_to_do_imports_few_modules() -> None:
    """It has to end within half a second. The steps of a graft are imported when there is one."""
    program = "import sys, torchfork.cli as c; c.make_parser(['build']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(LIB)}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    there = {f"torchfork.{name_of(path)}".replace("/", ".") for path in MODULES}
    imported = there.intersection(done.stdout.split())
    assert {"torchfork.cli", "torchfork.commands.build", "torchfork.upstream.wheel"} <= imported
    assert len(imported) <= 30
    assert not {"asyncio", "cattrs", "torchfork.pipelines.graft"} & set(done.stdout.split())
