"""The one maker of virtual environments, and pip inside them."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Protocol

from packaging.specifiers import SpecifierSet

from ..errors import ToolMissingError
from . import files, pip, process

Say = Callable[[str], None]
_QUIET = ("--disable-pip-version-check", "--no-input")
# The user's indexes count; settings that would install elsewhere do not (pip skips empty ones).
_HERE = {"PIP_USER": "0", "PIP_TARGET": "", "PIP_PREFIX": "", "PIP_ROOT": ""}


class Python(Protocol):
    """What an environment needs to know of the interpreter that it is made with."""

    @property
    def executable(self) -> Path: ...
    @property
    def version(self) -> str: ...  # '3.11.7'
    @property
    def tag(self) -> str: ...  # 'cp311', 'cp314t'


def make(root: Path, base: Python, neutral: Path, purpose: str) -> Path:
    """Make a virtual environment anew; its interpreter. Raises ToolMissingError.

    purpose: 'to build in'.
    neutral: a directory to run in, where nothing shadows the standard library.
    """
    shutil.rmtree(root, ignore_errors=True)
    pip_files = _own_pip(base)
    options = ["--without-pip"] if pip_files else []
    command: list[str | Path] = [base.executable, "-m", "venv", *options, root]
    outcome = process.run(command, cwd=neutral, check=False, supervised=True)
    if outcome.returncode:
        raise ToolMissingError(
            f"cannot make a virtual environment {purpose}",
            where=outcome.command,
            why="\n".join((outcome.stdout + outcome.stderr).strip().splitlines()[-4:]),
            next=f"apt-get install python{_minor(base)}-venv (Debian, Ubuntu)",
        )
    for relative, source in pip_files.items():
        target = root / "lib" / f"python{_minor(base)}" / "site-packages" / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
    return root / "bin" / "python"


def _own_pip(base: Python) -> dict[str, Path]:
    """What ensurepip put into the tools' environment, by its path in site-packages.

    It is copied where both are of one version: ensurepip takes four seconds. Empty elsewhere, and
    for a free-threaded Python, whose site-packages lie at another path.
    """
    own = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    if sys.prefix == sys.base_prefix or base.tag != own:
        return {}
    found: dict[str, Path] = {}
    for name in ("pip", "setuptools"):
        try:
            found |= _files_of(metadata.distribution(name))
        except metadata.PackageNotFoundError:
            continue
    return found if "pip/__main__.py" in found else {}


def _files_of(installed: metadata.Distribution) -> dict[str, Path]:
    """What a distribution has in site-packages, by its path there."""
    listed = [file for file in installed.files or () if ".." not in file.parts]
    places = {str(file): Path(str(file.locate())) for file in listed}
    return {name: place for name, place in places.items() if place.is_file()}


def _link(place: Path, site: Path, base: Python) -> None:
    """Link the distributions in `place` that fit this Python and that `site` does not have."""
    there = {installed.name for installed in metadata.distributions(path=[str(site)])}
    for found in metadata.distributions(path=[str(place)]):
        tags = re.findall(r"^Tag: (\w+)-(\w+)-", found.read_text("WHEEL") or "", re.MULTILINE)
        fits = any(python == "py3" or abi == base.tag for python, abi in tags)
        versions = SpecifierSet(",".join(found.metadata.get_all("Requires-Python", [])))
        if fits and base.version in versions and found.name not in there:
            for name, file in _files_of(found).items():
                (site / name).parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(file, site / name)
                except OSError:  # of another filesystem
                    shutil.copy2(file, site / name)


def _minor(base: Python) -> str:
    return ".".join(base.version.split(".")[:2])


def pip_run(python: Path, neutral: Path, *arguments: str) -> process.Outcome:
    """Run the environment's own pip; the caller looks at how it ended."""
    command: list[str | Path] = [python, "-m", "pip", *arguments, *_QUIET]
    return process.run(command, cwd=neutral, env=_HERE, check=False, supervised=True)


def packages(
    requirements: Path, base: Python, root: Path, what: str, say: Say, *options: str
) -> Path:
    """A directory of what a requirements file lists, for a path to look in; made once.

    Nothing is installed into the interpreter's own environment.
    options: more of pip's. Raises DownloadError, HashMismatchError.
    """
    key = files.sha256_text(requirements.read_text(encoding="utf-8"))[:12]
    place = root / f"{requirements.stem}-{base.tag}-{key}"

    def fill(directory: Path) -> None:
        command = [
            *pip.command(base.executable), "install", *_QUIET, "--no-compile", "--target",
            directory, *options, "-r", requirements,
        ]  # fmt: skip
        outcome = process.run(command, env=_HERE, check=False, supervised=True)
        if outcome.returncode:
            raise pip.download_error(outcome, what, place)

    if not place.is_dir():
        say(f"fetching {what}")
        files.build_directory(place, fill)
    return place


def with_requirements(
    root: Path, base: Python, requirements: Sequence[str], what: str, say: Say, *options: str,
    at_hand: Iterable[Path] = (),
) -> Path:  # fmt: skip
    """An environment with these requirements, made once and again when they change.

    requirements: lines of a requirements file. what: names them ("the build's requirements").
    options: more of pip's.
    at_hand: directories laid out as site-packages is; what fits in them pip need not install.
    Raises DownloadError, HashMismatchError, ToolMissingError.
    """
    python, note = root / "bin" / "python", root / "made-from.txt"
    wanted = "\n".join([str(base.executable), base.version, *requirements]) + "\n"
    if python.exists() and note.is_file() and note.read_text(encoding="utf-8") == wanted:
        return python
    say("making an environment")
    root.parent.mkdir(parents=True, exist_ok=True)
    make(root, base, root.parent, f"for {what}")
    (site,) = root.glob("lib/python*/site-packages")
    for place in at_hand:
        _link(place, site, base)
    say(f"installing {what}")
    listed = root / "requirements.txt"
    files.write_text(listed, "\n".join(requirements) + "\n")
    outcome = pip_run(python, root, "install", "--progress-bar=off", *options, "-r", str(listed))
    if outcome.returncode:
        raise pip.download_error(outcome, what, root)
    files.write_text(note, wanted)
    return python


def with_wheel(
    wheel: Path, base: Python, requirements: Sequence[str], workdir: Path, neutral: Path, say: Say
) -> Path:
    """An environment with a wheel and what it requires; its interpreter.

    requirements: the wheel's own, whose environment is kept: they do not change while one works on
        kernels, and are some GB for a CUDA build. The wheel itself is installed anew each time.
    neutral: an empty directory to run in, so that nothing there shadows what is installed.
    """
    key = files.sha256_text(str(base.executable), base.version, *requirements)
    root = workdir / f"venv-{base.tag}-{key[:12]}"
    python, complete = root / "bin" / "python", root / ".whole"
    if complete.is_file() and python.exists():
        # Incomplete until pip is done: a killed installation is not built upon.
        complete.unlink()
        say("installing the wheel")
        # Not compiled to .pyc: an import does that for the few modules that it needs.
        again = ["--no-deps", "--force-reinstall", "--no-compile"]
        outcome = pip_run(python, neutral, "install", *again, str(wheel))
    else:
        say("making a clean environment")
        make(root, base, neutral, "to verify the wheel in")
        say("installing the wheel and its dependencies")
        outcome = pip_run(python, neutral, "install", "--no-compile", str(wheel))
    if outcome.returncode:
        raise pip.download_error(outcome, "the wheel's dependencies", root)
    files.write_text(complete, wheel.name + "\n")
    return python
