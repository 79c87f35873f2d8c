"""Environments that are made with pip of the tools' own, where that fits."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from sample_files import lay

from torchfork.util import process, venv

MINOR = ".".join(map(str, sys.version_info[:2]))


@dataclass(frozen=True)
class Python:
    tag: str
    version: str = f"{MINOR}.1"
    executable: Path = Path(sys.executable)


@pytest.mark.parametrize(
    ("suffix", "own_prefix", "copied"), [("", "venv", True), ("t", "venv", False),
                                         ("", sys.base_prefix, False)],
)  # fmt: skip
def test_pip_is_copied_to_where_the_new_environments_python_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, own_prefix: str, copied: bool
) -> None:
    record = "pip/__main__.py,,\npip/gone.pyc,,\n../../bin/pip,,\n"
    site = lay(tmp_path / "tools", {"pip/__main__.py": "", "pip-1.dist-info/RECORD": record})
    commands: list[list[str]] = []

    def run(command: list[str | Path], **_options: object) -> process.Outcome:
        commands.append([str(word) for word in command])
        return process.Outcome(("venv",), 0, "", "")

    def distribution(name: str) -> metadata.Distribution:
        if name != "pip":
            raise metadata.PackageNotFoundError(name)
        return metadata.PathDistribution(site / "pip-1.dist-info")

    monkeypatch.setattr(process, "run", run)
    monkeypatch.setattr(metadata, "distribution", distribution)
    monkeypatch.setattr(sys, "prefix", own_prefix)
    base = Python(f"cp{MINOR.replace('.', '')}{suffix}")
    venv.make(tmp_path / "new", base, tmp_path, "to test in")
    assert [("--without-pip" in command) for command in commands] == [copied]
    new = tmp_path / "new" / "lib" / f"python{MINOR}" / "site-packages"
    assert sorted(path.name for path in new.rglob("*.py")) == ["__main__.py"] * copied


def test_what_fits_this_python_is_linked_from_elsewhere(tmp_path: Path) -> None:
    """Not what is for another Python, for a later one, or there already."""
    tag = f"cp{MINOR.replace('.', '')}"
    base, elsewhere = Python(tag), tmp_path / "elsewhere"
    for name, tags, needed in (
        ("any", "py2-none-any py3-none-any", ">=3.10"), ("own", f"{tag}-{tag}-linux_x86_64", ""),
        ("threaded", f"{tag}-{tag}t-linux_x86_64", ""), ("later", "py3-none-any", ">=3.99"),
        ("pip", "py3-none-any", ""),
    ):  # fmt: skip
        info, listed = f"{name}-1.dist-info", "".join(f"Tag: {one}\n" for one in tags.split())
        lay(elsewhere, {
            f"{name}/module.py": "", f"{info}/WHEEL": listed,
            f"{info}/METADATA": f"Name: {name}\nVersion: 1\nRequires-Python: {needed}\n",
            f"{info}/RECORD": f"{name}/module.py,,\n{info}/METADATA,,\n../../bin/{name},,\n",
        })  # fmt: skip
    requirements = ("any", "own")
    python = venv.with_requirements(
        tmp_path / "new", base, requirements, "a test", lambda _: None, "--no-index", "--no-deps",
        at_hand=[elsewhere],
    )  # fmt: skip
    (site,) = (tmp_path / "new").glob("lib/*/site-packages")
    linked = sorted(path.parent.name for path in site.glob("*/module.py"))
    assert linked == ["any", "own"] and python.exists()
    assert (site / "any/module.py").samefile(elsewhere / "any/module.py")
