"""The torch at hand: an environment's, or a wheel's in an environment of its own."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from email.parser import HeaderParser
from pathlib import Path

from ..errors import UsageError
from ..upstream import interpreter
from ..upstream.base import Interpreter
from ..util import files, pip, process, venv

REQUIREMENTS = Path(__file__).resolve().parents[3] / "requirements-citizenship.txt"
Say = Callable[[str], None]


def of_environment(python: str | None) -> Interpreter:
    """The interpreter that was named."""
    return interpreter.probe(python, headers=False)


def of_wheel(wheel: Path, python: str | None, work: Path, say: Say) -> Interpreter:
    """An interpreter that has the wheel and what it requires, and nothing else."""
    if not wheel.is_file():
        raise UsageError(f"there is no wheel {wheel}", next="scripts/build_torch.sh makes one")
    target = interpreter.probe(python, headers=False)
    interpreter.require_python_tag(target, wheel.name.split("-")[-3], str(wheel))
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        head = HeaderParser().parsestr(archive.read(name).decode())
    neutral = work / "neutral"
    neutral.mkdir(parents=True, exist_ok=True)
    required = head.get_all("Requires-Dist", [])
    made = venv.with_wheel(wheel.absolute(), target, required, work, neutral, say)
    return interpreter.probe(made, headers=False)


def install_check_deps(target: Interpreter, work: Path, say: Say) -> Path:
    """A directory of the packages that the checks need, for the target's version of Python.

    Nothing is installed into the target's own environment; it looks here last.
    """
    text = REQUIREMENTS.read_text(encoding="utf-8")
    place = work / f"lent-{target.tag}-{files.sha256_text(text)[:12]}"

    def fill(directory: Path) -> None:
        options = ["--no-input", "--disable-pip-version-check", "--target", str(directory)]
        # Their own dependencies are listed too: torch, which some name, is never fetched.
        command = [*pip.command(target.executable), "install", "--no-deps", *options]
        outcome = process.run([*command, "-r", REQUIREMENTS], check=False)
        if outcome.returncode:
            raise pip.download_error(outcome, "what the checks need", place)

    if not place.is_dir():
        say("fetching what the checks need")
        files.build_directory(place, fill)
    return place
