"""What a kept result depends on: the rooms that made it, and its inputs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sample_files import lay

from torchfork.codegen import build_dir
from torchfork.codegen.build_dir import (
    GENERATOR_ROOMS,
    PACKAGE,
    WHEEL_ROOMS,
    BuildDir,
    tooling_fingerprint,
)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("copy") / "torchfork"
    return Path(shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__")))


def changes(package: Path, name: str, rooms: tuple[str, ...]) -> bool:
    """Whether another text in a file is another fingerprint."""
    path = package / name
    before = tooling_fingerprint.__wrapped__(rooms, package)
    text = path.read_text()
    path.write_text(f"{text}\n# another\n")
    try:
        return before != tooling_fingerprint.__wrapped__(rooms, package)
    finally:
        path.write_text(text)


@pytest.mark.parametrize(
    ("name", "generator", "wheel"),
    [
        *((name, False, False) for name in ("commands/build.py", "conformance/plan.py", "cli.py",
                                            "rebase/run.py", "state/journal.py", "errors.py")),
        *((name, False, True) for name in ("native/link.py", "support/module.cpp", "wheel/pack.py",
                                           "pipelines/graft.py", "util/blocks.py")),
        *((name, True, True) for name in ("codegen/driver.py", "edits/lists.py",
                                          "additions/merge.py", "upstream/abi.py")),
    ],
)  # fmt: skip
def test_a_change_makes_anew_what_its_room_makes_and_leaves_the_rest_valid(
    package: Path, name: str, generator: bool, wheel: bool
) -> None:
    assert changes(package, name, GENERATOR_ROOMS) is generator
    assert changes(package, name, WHEEL_ROOMS) is wheel


def test_every_room_that_a_graft_imports_counts() -> None:
    """A new room that graft.py uses must be named, or its changes would be missed."""
    text = (PACKAGE / "pipelines" / "graft.py").read_text()
    rooms = {line.split()[1].strip(".").split(".")[0] for line in text.splitlines()
             if line.startswith("from ..")}  # fmt: skip
    assert rooms - {"errors"} <= set(WHEEL_ROOMS)
    assert all((PACKAGE / room).is_dir() for room in WHEEL_ROOMS)
    assert build_dir.tooling_fingerprint() == build_dir.tooling_fingerprint.__wrapped__()


def test_the_same_inputs_are_delivered_to_several_places_and_each_is_forgotten_alone(
    tmp_path: Path,
) -> None:
    layout = BuildDir(tmp_path / "work")
    places = [tmp_path / name for name in ("one", "other")]
    for place in places:
        assert build_dir.up_to_date(layout, "inputs", place) is None
        lay(place, {"torch.whl": "made"})
        build_dir.keep_delivered(layout, "inputs", place / "torch.whl")
    one, other = (place / "torch.whl" for place in places)
    assert build_dir.up_to_date(layout, "inputs", one.parent) == one
    assert build_dir.up_to_date(layout, "changed", one.parent) is None
    one.unlink()
    assert build_dir.up_to_date(layout, "inputs", one.parent) is None
    # A run that is killed before it says so has delivered nothing.
    one.write_text("made")
    assert build_dir.up_to_date(layout, "inputs", one.parent) is None
    assert build_dir.up_to_date(layout, "inputs", other.parent) == other
