"""Gives the tests the wheel under test; without one they err and name the command that makes it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from subject import PROJECT, Archive, Subject

from torchfork.additions.load import load as load_additions
from torchfork.codegen import build_dir, header_check
from torchfork.codegen.model import Manifest
from torchfork.pipelines import graft
from torchfork.upstream import fetch
from torchfork.upstream import pins as releases
from torchfork.upstream import wheel as wheel_base
from torchfork.upstream.base import Base, probe
from torchfork.util import cache, venv
from torchfork.util.ui import Ui
from torchfork.wheel import overlay as overlay_packer
from torchfork.wheel import pack

HOW = (
    "scripts/run_tests.sh builds a wheel, installs it into an environment of its own and sets "
    "this; by hand: scripts/build_torch.sh, install the wheel in dist/ somewhere, then "
    "TORCHFORK_TEST_WHEEL=dist/torch-….whl TORCHFORK_TEST_PYTHON=…/bin/python python -m pytest "
    "tests/wheel"
)


def pytest_configure(config: pytest.Config) -> None:
    """Name the markers that only these tests have."""
    config.addinivalue_line("markers", "slow: builds the whole wheel once more (minutes)")
    config.addinivalue_line("markers", "overlay: holds on an overlay too, given as the wheel")


def _named(variable: str) -> Path:
    value = os.environ.get(variable)
    if not value:
        pytest.fail(f"{variable} is not set. {HOW}", pytrace=False)
    # Not resolved: a virtual environment is known by the path of its interpreter's link.
    path = Path(value).absolute()
    if not path.is_file():
        pytest.fail(f"{variable} names no file: {value}. {HOW}", pytrace=False)
    return path


@pytest.fixture(scope="session")
def wheel() -> Archive:
    """The wheel under test."""
    return Archive(_named("TORCHFORK_TEST_WHEEL"))


@pytest.fixture(scope="session")
def subject(wheel: Archive, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """The wheel under test and the interpreter that has it, which is made sure of."""
    found = Subject(wheel, _named("TORCHFORK_TEST_PYTHON"), tmp_path_factory.mktemp("neutral"))
    installed = found.ask("import json, torch; print(json.dumps(torch.__version__))")
    wanted = wheel.torch_version
    assert installed == wanted, (
        f"TORCHFORK_TEST_PYTHON has torch {installed}, TORCHFORK_TEST_WHEEL is {wanted}"
    )
    return found


@pytest.fixture(scope="session")
def base(subject: Subject) -> Base:
    """The official wheel that the wheel under test was made from, unpacked in the user's cache."""
    target = probe(subject.python)
    pins = releases.load()
    version = subject.wheel.version
    release = pins.get(version.partition("+")[0])
    opening = wheel_base.Opening(target, pins, cache.directory())
    at_hand = fetch.cached_wheels(release, target, cache.directory())
    candidates = at_hand or [fetch.fetch_wheel(release, opening)]
    for path in candidates:
        opened = wheel_base.open_wheel(path, opening)
        if version.startswith(wheel_base.grafted_version(opened.version, 0)[:-1]):
            return opened
    pytest.fail(f"none of {candidates} is what torch {version} was made from", pytrace=False)


@pytest.fixture(scope="session")
def base_wheel(base: Base) -> Archive:
    """The base's wheel file."""
    assert base.wheel is not None
    return Archive(base.wheel)


@pytest.fixture(scope="session")
def added(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """The manifest of this project's additions on the base (what `torchfork check` makes)."""
    quiet, work = Ui(quiet=True), tmp_path_factory.mktemp("manifest")
    additions = load_additions(PROJECT)
    gated = header_check.check_headers(base, cache.directory(), quiet)
    layout = build_dir.for_base(base, additions, work)
    with build_dir.locked(layout):
        merged = graft.merge_and_validate(
            graft.BuildContext(base, additions, layout), gated.upstream, quiet
        )
    return merged.manifest


@pytest.fixture(scope="session")
def overlay(wheel: Archive, base_wheel: Archive, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the graft put on the base, read back from the wheel: the packer's input."""
    root = tmp_path_factory.mktemp("overlay")
    for name, member in wheel.members.items():
        theirs = base_wheel.members.get(name)
        same = theirs and (theirs.CRC, theirs.file_size) == (member.CRC, member.file_size)
        # The version is the packer's own work.
        if same or name.startswith("dist-info/") or name == "torch/version.py":
            continue
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(wheel.read(name))
    return root


@pytest.fixture(scope="session")
def overlay_wheel(base: Base, overlay: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The overlay's wheel of this project's additions."""
    name = overlay_packer.Name("torch-ext", "1.0")
    out = tmp_path_factory.mktemp("dist")
    return overlay_packer.pack(base, overlay, name, out, pack.DEFAULT_EPOCH)


@pytest.fixture(scope="session")
def with_overlay(
    wheel: Archive, base: Base, overlay_wheel: Path, subject: Subject,
    tmp_path_factory: pytest.TempPathFactory,
) -> Subject:  # fmt: skip
    """An environment with the official torch and the overlay beside it."""
    root = tmp_path_factory.mktemp("overlaid")
    python = venv.with_requirements(
        root / "environment", base.interpreter, [f"torch=={base.metadata_version}"], "the overlay",
        lambda _: None, "--no-index", at_hand=[base.root, subject.site],
    )  # fmt: skip
    installed = venv.pip_run(python, root, "install", "--no-deps", str(overlay_wheel))
    assert installed.returncode == 0, installed.stderr
    return Subject(wheel, python, subject.neutral)


@pytest.fixture(scope="session")
def foreign_place() -> Iterator[Path]:
    """A directory whose path has a space, a quote and letters beyond ASCII in it."""
    with tempfile.TemporaryDirectory(prefix="torch fork's größe ") as name:
        yield Path(name)
