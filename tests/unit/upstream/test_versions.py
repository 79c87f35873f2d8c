"""Versions: read from torch/version.py without importing it; a graft's version."""

from __future__ import annotations

import pytest
import sample_wheel as sample
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from torchfork.errors import BaseRefusedError
from torchfork.upstream.wheel import (
    grafted_version,
    is_grafted,
    read_version_file,
    replace_version,
)


@pytest.mark.parametrize(
    ("base", "grafted"),
    [
        ("2.13.0+cpu", "2.13.0+cpu.ext1"),
        ("2.11.0+cu130", "2.11.0+cu130.ext1"),
        ("2.13.0", "2.13.0+ext1"),
        ("2.16.0.dev20261101+cpu", "2.16.0.dev20261101+cpu.ext1"),
    ],
)
def test_a_graft_changes_the_local_part_alone(base: str, grafted: str) -> None:
    assert grafted_version(base, 1) == grafted
    assert str(Version(grafted)) == grafted
    assert Version(grafted) > Version(base)
    assert is_grafted(grafted) and not is_grafted(base)


def test_requirements_of_other_packages_stay_satisfied() -> None:
    assert SpecifierSet("==2.13.0").contains(grafted_version("2.13.0+cpu", 1))
    assert not SpecifierSet("==2.13.0").contains("2.13.0.post1")


def test_the_version_file_is_read_without_being_run() -> None:
    said = read_version_file(
        sample.version_file("2.13.0+cu130", cuda="13.0") + "raise SystemExit\n", "version.py"
    )
    assert (said.version, said.git_version) == ("2.13.0+cu130", sample.COMMIT)
    assert said.cuda == "13.0"


@pytest.mark.parametrize("text", ["", "def", "__version__ = '2.0'\n", "git_version = 'a'\n"])
def test_something_else_is_refused_as_version_file(text: str) -> None:
    with pytest.raises(BaseRefusedError):
        read_version_file(text, "version.py")


def test_replacing_the_version_changes_one_line() -> None:
    before = sample.version_file("2.13.0+cpu")
    after = replace_version(before, "2.13.0+cpu.ext1", "version.py")
    changed = [(a, b) for a, b in zip(before.split("\n"), after.split("\n"), strict=True) if a != b]
    assert changed == [("__version__ = '2.13.0+cpu'", "__version__ = '2.13.0+cpu.ext1'")]


def test_a_version_assigned_twice_is_not_guessed_at() -> None:
    with pytest.raises(BaseRefusedError, match="2 times"):
        replace_version("__version__ = '1'\n__version__ = '2'\n", "3", "version.py")
