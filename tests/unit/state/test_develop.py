"""--develop: the environment gets the overlay, undo gives every file back, a kill harms nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import sample_wheel as sample
from killing import every_kill, start, was_killed
from sample_files import lay

from torchfork.errors import BaseRefusedError, BusyError, OutputError, StateError, UsageError
from torchfork.state import installed_torch, journal
from torchfork.state.journal import Changes, Store
from torchfork.upstream.archives import read_record
from torchfork.upstream.base import Base, Interpreter
from torchfork.upstream.installed import locate
from torchfork.upstream.wheel import Opening, open_wheel
from torchfork.wheel.pack import pack

RECORD = "torch-9.1.0+cpu.dist-info/RECORD"


@dataclass(frozen=True)
class World:
    """An environment with a sample torch in it, and an overlay for it."""

    root: Path
    opening: Opening

    @property
    def interpreter(self) -> Interpreter:
        return self.opening.interpreter

    @property
    def site(self) -> Path:
        return self.interpreter.site_packages

    @property
    def overlay(self) -> Path:
        return self.root / "overlay"

    def base(self) -> Base:
        return installed_torch.open_base(self.opening)

    def lay(self, files: dict[str, str]) -> None:
        shutil.rmtree(self.overlay, ignore_errors=True)
        lay(self.overlay, files)

    def install(self) -> Changes:
        return installed_torch.install(self.base(), self.overlay)

    def undo(self) -> Changes:
        return installed_torch.undo(self.interpreter)

    def state(self) -> dict[str, tuple[bytes, int, int]]:
        """Every file below site-packages: contents, mode and time."""
        return {
            path.relative_to(self.site).as_posix(): (
                path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns,
            )
            for path in self.site.rglob("*") if path.is_file()
        }  # fmt: skip

    def text(self, name: str) -> str:
        return (self.site / name).read_text()


FIRST = {
    "torch/lib/libtorch.so": "with operators",
    "torch/overrides.py": "NAMES = ['relu', 'gdh']\n",
    "torch/include/ATen/ops/gdh.h": "#pragma once\n",
    "torch/added/deep/new.py": "x = 1\n",
}
SECOND = {
    "torch/lib/libtorch.so": "with other operators",
    "torch/include/ATen/ops/gdh.h": "#pragma once\n",
    "torch/include/ATen/ops/relu.h": "#pragma once // changed\n",
}


@pytest.fixture
def world(tmp_path: Path, interpreter: Interpreter) -> World:
    sample.install(interpreter.site_packages)
    compiled = interpreter.site_packages / "torch" / "__pycache__"
    compiled.mkdir()
    (compiled / f"overrides.{sys.implementation.cache_tag}.pyc").write_bytes(b"compiled")
    os.utime(interpreter.site_packages / "torch" / "overrides.py", (1_600_000_000, 1_600_000_000))
    pins = sample.releases(tmp_path / "releases.toml")
    made = World(tmp_path, Opening(interpreter, pins, tmp_path / "cache"))
    made.lay(FIRST)
    return made


def test_the_installed_torch_is_described_as_its_wheel_would_be(world: World) -> None:
    base = world.base()
    assert (base.version, base.git_version, base.wheel) == ("9.1.0+cpu", sample.COMMIT, None)
    assert (base.dist_info, base.wheel_tag) == ("torch-9.1.0+cpu.dist-info", sample.TAG)
    for name, data in sample.contents().items():
        assert (base.root / name).read_bytes() == data
    assert world.base() == base


def test_undo_restores_every_file_bit_for_bit_with_modes_and_times(world: World) -> None:
    (world.site / "torch/lib/libtorch.so").chmod(0o751)
    before = world.state()
    world.install()
    world.lay(SECOND)
    world.install()
    world.undo()
    assert world.state() == before
    assert not (world.site / "torch/added").exists()
    assert not (world.site / installed_torch.DIRECTORY).exists()


def test_what_python_compiled_meanwhile_is_undone_too(world: World) -> None:
    before = world.state()
    world.install()
    question = "import torch.overrides, torch.added.deep.new; assert torch.overrides.NAMES[1]"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    command = [str(world.interpreter.executable), "-c", question]
    subprocess.run(command, check=True, env=environment, cwd=world.root)
    world.undo()
    compiled = "torch/__pycache__/overrides."
    after = {n: s for n, s in world.state().items() if "__pycache__" not in n or compiled in n}
    assert after == before
    assert not (world.site / "torch/added").exists()


def test_an_install_puts_the_overlay_there_and_a_second_one_writes_nothing(world: World) -> None:
    assert set(world.install().written) == {*FIRST, RECORD}
    assert all(world.text(name) == text for name, text in FIRST.items())
    before = world.state()
    changes = world.install()
    assert (changes.written, changes.restored, changes.removed) == ((), (), ())
    assert changes.unchanged == len(FIRST) + 1 and world.state() == before


def test_only_what_changed_is_rewritten_and_what_went_is_put_back(world: World) -> None:
    world.install()
    world.lay(SECOND)
    changes = world.install()
    written = {"torch/lib/libtorch.so", "torch/include/ATen/ops/relu.h", RECORD}
    assert set(changes.written) == written
    assert changes.restored == ("torch/overrides.py",)
    assert changes.removed == ("torch/added/deep/new.py",)
    assert world.text("torch/overrides.py") == "NAMES = ['relu']\n"
    assert not (world.site / "torch/added").exists()


def test_the_base_shows_the_originals_while_the_environment_is_changed(world: World) -> None:
    before = world.base()
    world.install()
    during = world.base()
    assert during == before
    for name, data in sample.contents().items():
        assert (during.root / name).read_bytes() == data
    assert not (during.root / "torch/added").exists()
    world.undo()
    assert world.base() == before
    assert (before.root / "torch/overrides.py").read_text() == "NAMES = ['relu']\n"


def test_versions_still_agree_and_a_mapped_library_is_not_written_into(world: World) -> None:
    with (world.site / "torch/lib/libtorch.so").open() as mapped:
        world.install()
        assert mapped.read() == "a stub library\n"
    question = "import torch; from importlib.metadata import version as v\n"
    question += "assert torch.__version__ == v('torch') == '9.1.0+cpu'"
    subprocess.run([str(world.interpreter.executable), "-c", question], check=True, cwd=world.root)


def test_record_stays_valid_and_pip_uninstalls_everything(world: World) -> None:
    world.install()
    record = read_record(world.text(RECORD))
    for name in FIRST:
        assert int(record[name][1]) == (world.site / name).stat().st_size
    assert f"{installed_torch.DIRECTORY}/files/torch/lib/libtorch.so" in record
    pip = [sys.executable, "-m", "pip", "--python", str(world.interpreter.executable)]
    subprocess.run([*pip, "check"], check=True, capture_output=True)
    subprocess.run([*pip, "uninstall", "-y", "torch"], check=True, capture_output=True)
    assert not (world.site / "torch").exists()


def test_a_wheel_can_be_packed_from_the_installed_torch(world: World) -> None:
    world.install()
    base = world.base()
    made = pack(base, world.overlay, "9.1.0+cpu.ext1", world.root / "dist", 1_600_000_000)
    reference = sample.write_wheel(world.root / "wheel")
    from_wheel = open_wheel(reference, world.opening)
    other = pack(from_wheel, world.overlay, "9.1.0+cpu.ext1", world.root / "d2", 1_600_000_000)
    with zipfile.ZipFile(made) as ours, zipfile.ZipFile(other) as theirs:
        assert ours.namelist() == theirs.namelist()
        assert all(ours.read(name) == theirs.read(name) for name in ours.namelist())


@pytest.mark.parametrize("action", ["install", "undo"])
@pytest.mark.parametrize("name", ["torch/lib/libtorch.so", "torch/include/ATen/ops/gdh.h"])
def test_edits_of_others_are_named_and_kept(world: World, action: str, name: str) -> None:
    world.install()
    (world.site / name).write_text("edited by hand")
    state = world.state()
    with pytest.raises(StateError, match="nothing was overwritten") as caught:
        getattr(world, action)()
    assert caught.value.exit_code == 32 and name in caught.value.why
    assert world.state() == state


def test_an_installed_file_that_is_not_the_wheels_is_refused_as_base(world: World) -> None:
    (world.site / "torchgen/gen.py").write_text("edited")
    with pytest.raises(BaseRefusedError) as caught:
        world.base()
    assert caught.value.why == "torchgen/gen.py"


def test_a_torch_that_is_not_the_one_built_for_is_not_changed(world: World) -> None:
    with pytest.raises(StateError, match="nothing to undo") as caught:
        world.undo()
    assert caught.value.exit_code == 32
    wheel = sample.write_wheel(world.root)
    base = open_wheel(wheel, world.opening)
    with pytest.raises(UsageError, match="--develop"):
        installed_torch.install(base, world.overlay)
    base = world.base()
    (world.site / "torch/overrides.py").write_text("NAMES = ['mine']\n")
    with pytest.raises(StateError) as caught:  # a file that was edited before the first install
        installed_torch.install(base, world.overlay)
    assert "torch/overrides.py" in caught.value.why
    assert world.text("torch/overrides.py") == "NAMES = ['mine']\n"
    sample.install(world.site, sample.with_record({**sample.contents(), "torch/more.py": b"\n"}))
    with pytest.raises(StateError, match="has changed since"):
        installed_torch.install(base, world.overlay)


def test_an_environment_without_torch_is_told_so(world: World) -> None:
    shutil.rmtree(world.site / "torch-9.1.0+cpu.dist-info")
    with pytest.raises(BaseRefusedError, match="no torch is installed") as caught:
        world.base()
    assert "pip install torch" in caught.value.next


def test_a_journal_of_another_form_is_no_licence_to_overwrite(world: World) -> None:
    world.install()
    path = installed_torch.store(world.site).path
    path.write_text(path.read_text().replace('"format": 2', '"format": 3'))
    with pytest.raises(StateError, match="journal"):
        world.undo()


@pytest.fixture
def quick(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """The same world, asked but once where its torch lies: killing is done a hundred times."""
    found = locate(world.interpreter)
    monkeypatch.setattr("torchfork.state.installed_torch.locate", lambda interpreter: found)
    return world


@pytest.mark.parametrize("killed", ["first install", "second install", "undo"])
def test_a_killed_run_can_be_finished_or_undone_wherever_it_was(quick: World, killed: str) -> None:
    world = quick
    base, before = world.base(), world.state()
    wanted = SECOND if killed == "second install" else FIRST

    def arrange() -> None:
        world.lay(FIRST)
        if killed != "first install":
            world.install()
        world.lay(wanted)

    def action() -> object:
        return world.undo() if killed == "undo" else installed_torch.install(base, world.overlay)

    def recover(allowed: int) -> None:
        if allowed % 2:
            world.install()
            assert all(world.text(name) == text for name, text in wanted.items()), allowed
        quietly(world.undo)
        assert world.state() == before, allowed
        arrange()

    arrange()
    assert every_kill(action, world.site, recover) > 8


def quietly(action: Callable[[], object]) -> None:
    """Do it, or find that there is nothing to undo."""
    try:
        action()
    except StateError as error:
        assert "nothing to undo" in error.what


@pytest.mark.parametrize(
    ("one", "other", "cache"),
    [
        ("install", "install", "one"),
        ("install", "install", "two"),
        ("install", "another", "two"),
        ("install", "undo", "two"),
        ("undo", "install", "two"),
        ("undo", "undo", "two"),
    ],
)
def test_two_runs_that_are_killed_leave_old_or_new_wherever_they_were(
    quick: World, one: str, other: str, cache: str
) -> None:
    """At once: one is killed at each of its changes, the other at one of its; the last end well."""
    world = quick
    world.lay(SECOND)
    second = world.overlay.rename(world.root / "second")
    world.lay(FIRST)
    before = world.state()

    def run(action: str, cache: str) -> None:
        if action == "undo":
            quietly(world.undo)
            return
        base = installed_torch.open_base(replace(world.opening, cache=world.root / cache))
        installed_torch.install(base, second if action == "another" else world.overlay)

    known: dict[str, set[str | None]] = {}
    for name in {*FIRST, *SECOND}:
        old = world.text(name) if (world.site / name).exists() else None
        known[name] = {old, FIRST.get(name), SECOND.get(name)}
    kills = 0
    for allowed in range(70):
        if one == "undo":
            world.install()
        children = [
            start(partial(run, action, cache), world.site, places)
            for action, cache, places in ((one, "one", allowed), (other, cache, allowed * 7 % 60))
        ]
        kills += sum([was_killed(child) for child in children])
        for name, texts in known.items():
            path = world.site / name
            assert (path.read_text() if path.exists() else None) in texts, (allowed, name)
        if allowed % 2:
            world.install()
            assert all(world.text(name) == text for name, text in FIRST.items()), allowed
        quietly(world.undo)
        assert world.state() == before, allowed
    assert kills > 30


EXTENSION = f"torch/_C{sample.SUFFIX}.stub"


def overlay_with(operator: str) -> dict[str, str]:
    """An overlay whose modules fail at import where what they need is not there yet, or no more."""
    needs = (
        "import pathlib\n"
        "here = pathlib.Path(__file__).parent\n"
        f"assert '{operator}' in (here / '{Path(EXTENSION).name}').read_text()\n"
        f"from torch.added.{operator} import name\n"
    )
    return {
        "torch/lib/libtorch.so": f"has {operator}",
        EXTENSION: f"needs {operator}",
        "torch/overrides.py": f"{needs}NAMES = ['relu', name]\n",
        "torch/__init__.py": f"{sample.contents()['torch/__init__.py'].decode()}"
        f"from torch.overrides import NAMES\nassert '{operator}' in NAMES\n",
        f"torch/added/{operator}.py": f"name = '{operator}'\n",
        "torch/added/__init__.py": "",
    }


def test_torch_can_be_imported_after_every_change(
    quick: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, seen = quick, 0

    def check() -> None:
        nonlocal seen
        seen += 1
        extension, library = world.site / EXTENSION, world.site / "torch/lib/libtorch.so"
        needed = re.findall(r"(?<=needs )\w+", extension.read_text())
        assert set(needed) <= set(library.read_text().split())
        command = [str(world.interpreter.executable), "-B", "-c", "import torch.overrides"]
        subprocess.run(command, check=True, cwd=world.root)

    for name in ("put", "put_back"):
        method = getattr(Store, name)

        def checked(*arguments: object, method: Callable[..., object] = method) -> object:
            outcome = method(*arguments)
            check()
            return outcome

        monkeypatch.setattr(Store, name, checked)
    before = world.state()
    for operator in ("gdh", "swing"):
        world.lay(overlay_with(operator))
        world.install()
    world.undo()
    assert world.state() == before and seen > 20


def test_directories_that_are_new_are_open_to_whom_the_environment_is(world: World) -> None:
    """Else another user's import fails where ours works."""
    old = os.umask(0o077)
    try:
        world.install()
    finally:
        os.umask(old)
    expected = (world.site / "torch").stat().st_mode
    new = [world.site / "torch/added", world.site / "torch/added/deep"]
    kept = installed_torch.store(world.site)
    for directory in [*new, kept.path.parent, kept.original("torch/lib")]:
        assert directory.stat().st_mode == expected, directory
    assert (world.site / "torch/added/deep/new.py").stat().st_mode & 0o777 == 0o644


def test_another_run_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    base = world.base()
    monkeypatch.setattr(installed_torch, "LOCK_SECONDS", 0.3)
    with journal.exclusive(world.site / "torch", "changing", 1, ""):
        with pytest.raises(BusyError, match="another run"):
            installed_torch.install(base, world.overlay)
        with pytest.raises(BusyError):
            installed_torch.undo(world.interpreter)
    assert len(caplog.messages) == 2 and str(world.site) in caplog.text
    assert installed_torch.install(base, world.overlay).written


def test_a_read_only_environment_is_an_output_error(world: World) -> None:
    before = world.state()
    directories = [path for path in [world.site, *world.site.rglob("*")] if path.is_dir()]
    for directory in directories:
        directory.chmod(0o555)
    try:
        if os.access(world.site / "torch", os.W_OK):
            pytest.skip("this user may write into read-only directories")
        with pytest.raises(OutputError, match="cannot") as caught:
            world.install()
        assert caught.value.exit_code == 30
    finally:
        for directory in directories:
            directory.chmod(0o755)
    assert world.state() == before


def test_a_full_disk_is_told_and_can_be_undone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, base = world.state(), world.base()

    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfile", full)
        with pytest.raises(OutputError) as caught:
            installed_torch.install(base, world.overlay)
    assert "No space left" in caught.value.why
    world.undo()
    assert world.state() == before
