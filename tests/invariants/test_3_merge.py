"""Invariant 3: merging is insertion; a killed run leaves old or new, and the next one finishes."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command import SMALL, Command

from torchfork.additions.merge import MERGED_FILES
from torchfork.upstream.base import Base
from torchfork.util.blocks import strip_blocks

pytestmark = pytest.mark.wheel


def texts_of_merged_tree(command: Command, base: Base) -> list[tuple[str, str, str]]:
    """Files of the generator's copy that differ from the base's: name, upstream's text, merged."""
    tree = command.layout() / "tree"
    found = []
    for path in sorted((tree / "torchgen").rglob("*")):
        relative = path.relative_to(tree).as_posix()
        if path.is_file() and "__pycache__" not in path.parts:
            upstream = (base.root / relative).read_bytes()
            if path.read_bytes() != upstream:
                found.append((relative, upstream.decode(), path.read_text(encoding="utf-8")))
    return found


def test_3_the_merged_tree_is_upstreams_with_blocks_inserted(finished: Command, base: Base) -> None:
    changed = texts_of_merged_tree(finished, base)
    names = {name for name, _, _ in changed}
    assert MERGED_FILES["native"] in names
    for name, upstream, merged in changed:
        assert strip_blocks(merged, name) == upstream, name


def wait_for(
    running: subprocess.Popen[str], condition: Callable[[], bool], seconds: float = 120
) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)


def test_3_the_result_depends_on_the_additions_and_not_on_their_history(
    tmp_path: Path, base_option: tuple[str, ...]
) -> None:
    """Another operator, a view that hooks list, is added and taken out again."""
    command = Command(tmp_path, base_option, tmp_path / "additions")
    shutil.copytree(SMALL, command.additions)
    native = command.additions / "native_functions_additions.yaml"
    before = native.read_text(encoding="utf-8")
    assert command.run("check").code == 0
    first = tree_of(command)
    native.write_text(before + "\n- func: wheel_test_shout(Tensor self) -> ()\n")
    assert command.run("check").code == 0
    assert tree_of(command) != first
    native.write_text(before)
    assert command.run("check").code == 0
    assert tree_of(command) == first


def tree_of(command: Command) -> dict[str, bytes]:
    tree = command.layout() / "tree"
    return {
        path.relative_to(tree).as_posix(): path.read_bytes()
        for path in tree.rglob("*")
        if path.is_file()
    }


def test_3_a_second_run_does_nothing_and_says_so(finished: Command) -> None:
    def state() -> dict[Path, int]:
        roots = (finished.layout(), finished.out)
        return {p: p.stat().st_mtime_ns for root in roots for p in root.rglob("*") if p.is_file()}

    before = state()
    again = finished.run()
    assert again.code == 0 and "nothing to do" in again.err
    assert state() == before


def test_3_an_edit_during_a_build_counts_as_a_change(
    tmp_path: Path, base_option: tuple[str, ...]
) -> None:
    """The next run must not take the wheel for one that has the edit."""
    command = Command(tmp_path, base_option, tmp_path / "additions")
    shutil.copytree(SMALL, command.additions)
    (source,) = (command.additions / "aten_src" / "native").glob("*.cpp")
    running = command.start()
    wait_for(running, lambda: any(tmp_path.glob("out/.torch-*")), 400)
    source.write_text(source.read_text() + "// edited\n")
    running.communicate()
    assert running.returncode == 0
    again = command.run()
    assert again.code == 0 and "nothing to do" not in again.err
