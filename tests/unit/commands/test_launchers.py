"""The launchers: tools of their own, set up once, whatever the path, the directory or the past."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from sample_files import lay, program
from sample_wheel import made_up

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
MAIN = """
import os, sys, onetool
print(repr((sys.argv[1:], sys.executable, os.environ["TORCHFORK_TARGET_PYTHON"], onetool.VERSION)))
"""


@dataclass(frozen=True)
class Project:
    """A checkout with the real launchers, a package of one line, and one small requirement."""

    root: Path
    shelf: Path  # pip takes find-links for a list with blanks between, so this path has none

    @property
    def tools(self) -> Path:
        return self.root / ".torchfork" / "tools"

    def run(
        self, *arguments: str, script: str = "torchfork", cwd: Path | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        dropped = {"VIRTUAL_ENV", "TORCHFORK_TARGET_PYTHON", "PYTHONPATH"}
        environment = {k: v for k, v in os.environ.items() if k not in dropped}
        environment |= {
            "TORCHFORK_PYTHON": sys.executable, "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.shelf), "PIP_CONFIG_FILE": os.devnull,
        }  # fmt: skip
        path = self.root / "scripts" / script
        return subprocess.run(
            [str(path), *arguments], env={**environment, **env}, cwd=cwd or self.root.parent,
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def copied(self, root: Path, *, tools: bool = True) -> Project:
        """A copy of the checkout. tools: with those that are set up."""
        if tools:
            shutil.copytree(self.root, root, symlinks=True)
        else:
            shutil.copytree(self.root / "scripts", root / "scripts")
        return Project(root, self.shelf)

    def require(self, version: str) -> None:
        """Make 'onetool' of a version the one requirement, and let pip find it."""
        made_up(self.shelf, "onetool", version, files={"onetool.py": f"VERSION = '{version}'\n"})
        requirements = self.root / "scripts" / "requirements.txt"
        requirements.write_text(f"# one\nonetool=={version}  # for this test\n")

    def environment(self) -> Path:
        """Where the tools of the present requirements are, or will be."""
        path = self.root / "scripts" / "bootstrap.py"
        spec = importlib.util.spec_from_file_location("bootstrap_of_project", path)
        assert spec and spec.loader
        bootstrap = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(bootstrap)
        return self.tools / str(bootstrap.environment_name(sys.executable))


def answer(done: subprocess.CompletedProcess[str]) -> tuple[list[str], str, str, str]:
    assert done.returncode == 0, done.stderr
    arguments, runner, target, version = eval(done.stdout)
    return arguments, runner, target, version


@pytest.fixture(scope="module")
def unmade(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("mit Ümlaut und Leerzeichen") / "pro jekt"
    lay(root / "scripts/lib/torchfork", {"__init__.py": "", "__main__.py": MAIN})
    for name in ("torchfork", "build_torch.sh", "bootstrap.py"):
        shutil.copy(SCRIPTS / name, root / "scripts" / name)
    project = Project(root, tmp_path_factory.mktemp("shelf"))
    project.require("1.0")
    return project


@pytest.fixture(scope="module")
def first_starts(unmade: Project) -> list[str]:
    """What the first two starts said, which happened at once."""
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda _: unmade.run(), range(2)))
    messages = [run.stderr for run in runs]
    assert [run.returncode for run in runs] == [0, 0], messages
    return messages


@pytest.fixture(scope="module")
def made(unmade: Project, first_starts: list[str]) -> Project:
    return unmade


def test_arguments_arrive_as_they_were_given(made: Project) -> None:
    given = ["check", "a b", "", "*", "--x=ü", "$HOME"]
    assert answer(made.run(*given))[0] == given
    assert answer(made.run("--torch", "2.15.0", script="build_torch.sh"))[0] == [
        "build", "--torch", "2.15.0",
    ]  # fmt: skip


def test_tools_are_a_private_environment_and_the_chosen_python_the_target(made: Project) -> None:
    _, runner, target, _ = answer(made.run())
    assert Path(runner).is_relative_to(made.tools)
    assert target == sys.executable
    assert answer(made.run(TORCHFORK_TARGET_PYTHON="/opt/other"))[2] == "/opt/other"


def test_a_second_start_sets_nothing_up(made: Project) -> None:
    def times() -> dict[Path, int]:
        files = [p for p in made.tools.rglob("*") if "__pycache__" not in p.parts]
        return {p: p.stat().st_mtime_ns for p in files}

    before = times()
    assert made.run().stderr == "" and times() == before


def test_a_copied_or_moved_checkout_runs_its_own_tools(made: Project, tmp_path: Path) -> None:
    copy = made.copied(tmp_path / "copy")
    done = copy.run()
    assert Path(answer(done)[1]).is_relative_to(copy.root) and "setting up" not in done.stderr
    moved = Project(copy.root.rename(tmp_path / "moved"), copy.shelf)
    done = moved.run()
    assert Path(answer(done)[1]).is_relative_to(moved.root) and "setting up" not in done.stderr


def test_a_checkout_whose_path_has_a_colon_is_refused(made: Project, tmp_path: Path) -> None:
    done = made.copied(tmp_path / "a:b").run()
    assert done.returncode == 16 and "':'" in done.stderr and "next:  move" in done.stderr


def test_any_directory_and_links_to_the_launcher_will_do(made: Project, tmp_path: Path) -> None:
    (tmp_path / "onetool.py").write_text("VERSION = 'shadowed by the current directory'")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "one").symlink_to(made.root / "scripts" / "torchfork")
    (tmp_path / "two").symlink_to("links/one")
    done = subprocess.run(
        [str(tmp_path / "two"), "x"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "TORCHFORK_PYTHON": sys.executable, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert answer(done)[0] == ["x"] and answer(done)[3] == "1.0"
    assert answer(made.run(cwd=Path("/")))[3] == "1.0"


def test_changed_requirements_are_installed_before_anything_runs_killed_set_ups_notwithstanding(
    made: Project,
) -> None:
    """The new requirements' environment is there, but for the marker that is written last."""
    try:
        made.require("2.0")
        half_made = made.environment()
        (half_made / "bin").mkdir(parents=True)
        (half_made / "bin" / "python").symlink_to(sys.executable)
        (half_made / "leaving").write_text("")
        done = made.run()
        assert answer(done)[3] == "2.0" and "setting up the tools" in done.stderr
        assert Path(answer(done)[1]).is_relative_to(half_made)
        assert not (half_made / "leaving").exists()
    finally:
        made.require("1.0")
    again = made.run()
    assert answer(again)[3] == "1.0" and "setting up the tools" not in again.stderr


def test_two_first_starts_at_once_set_up_once(made: Project, first_starts: list[str]) -> None:
    assert sum("setting up the tools (once" in message for message in first_starts) == 1
    assert sum("waiting for another run" in message for message in first_starts) <= 1


def test_without_an_index_the_interpreters_own_modules_serve(made: Project, tmp_path: Path) -> None:
    project = made.copied(tmp_path / "copy", tools=False)
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = venv / "bin" / "python"
    question = "import sysconfig; print(sysconfig.get_path('purelib'))"
    found = subprocess.run([python, "-c", question], check=True, capture_output=True, text=True)
    with zipfile.ZipFile(made.shelf / "onetool-1.0-py3-none-any.whl") as wheel:
        wheel.extractall(found.stdout.strip())
    first = project.run(TORCHFORK_PYTHON=str(python), PIP_FIND_LINKS="")
    assert answer(first)[3] == "1.0" and "note: pip could not set up the tools" in first.stderr
    second = project.run(TORCHFORK_PYTHON=str(python), PIP_FIND_LINKS="")
    assert answer(second)[3] == "1.0" and second.stderr == ""
    done = made.copied(tmp_path / "without", tools=False).run(PIP_FIND_LINKS="")
    assert done.returncode == 16
    assert "error: cannot install the tools' requirements" in done.stderr
    assert "lacks onetool" in done.stderr and "next:" in done.stderr


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"TORCHFORK_PYTHON": "/nowhere/python3"},
         ["there is no Python interpreter '/nowhere/python3'", "3.10"]),
        ({"TORCHFORK_PYTHON": "", "VIRTUAL_ENV": "/gone"}, ["/gone/bin/python", "deactivate"]),
        # A shim's answer is what counts, so an interpreter is played by two scripts.
        ({"TORCHFORK_PYTHON": "{shim}"}, ["too old", "Python 3.9.2; 3.10 is the oldest"]),
    ],
    ids=["none", "gone", "old"],
)  # fmt: skip
def test_a_python_that_cannot_serve_is_named_with_what_to_do(
    made: Project, tmp_path: Path, env: dict[str, str], says: list[str]
) -> None:
    old = program(tmp_path / "old", '[ "$1" = --version ] && echo Python 3.9.2\nexit 1')
    shim = program(tmp_path / "python3", f"echo '{old}'")
    env = {name: value.format(shim=shim) for name, value in env.items()}
    done = made.run(cwd=None, script="torchfork", **env)
    assert done.returncode == 16 and all(text in done.stderr for text in says)


def test_a_shim_is_asked_which_python_it_stands_for(made: Project, tmp_path: Path) -> None:
    shim = program(tmp_path / "python3", f"exec '{sys.executable}' \"$@\"")
    assert answer(made.run(TORCHFORK_PYTHON=str(shim)))[2] == sys.executable


def test_another_interpreters_home_reaches_neither_the_shim_nor_the_set_up(
    made: Project, tmp_path: Path
) -> None:
    copy = made.copied(tmp_path / "copy")
    shim = program(tmp_path / "python3", f"exec '{sys.executable}' \"$@\"")
    for python in (sys.executable, str(shim)):
        shutil.rmtree(copy.tools / "by-python")
        assert answer(copy.run(TORCHFORK_PYTHON=python, PYTHONHOME="/nowhere"))[3] == "1.0"


def test_a_project_that_cannot_be_written_is_an_output_error(made: Project, tmp_path: Path) -> None:
    project = made.copied(tmp_path / "copy", tools=False)
    (project.root / ".torchfork").write_text("a file where a directory should be")
    done = project.run()
    assert done.returncode == 30 and "next:" in done.stderr


def test_requirements_are_pinned_each_with_its_exact_version() -> None:
    lines = (SCRIPTS / "requirements.txt").read_text().splitlines()
    rows = [line for line in lines if line and not line.startswith("#")]
    assert rows
    pinned = re.compile(r'[\w-]+==[\d.]+(; python_version < "3\.\d+")?(  # .*)?')
    assert [row for row in rows if not pinned.fullmatch(row)] == []
