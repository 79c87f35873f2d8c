"""The target interpreter: found and asked; what cannot serve is refused with a way on."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import sample_wheel as sample
from sample_files import program

from torchfork.errors import BaseRefusedError, ToolMissingError
from torchfork.upstream.base import probe, require_python_tag


def fake(tmp_path: Path, text: str) -> Path:
    """A program that answers as an interpreter would."""
    return program(tmp_path / "python", f"cat <<'END'\n{text}\nEND")


def answer(version: str, **changes: object) -> str:
    """What an interpreter says about itself, as JSON."""
    said = {
        "executable": "/opt/fake/bin/python", "version": version, "implementation": "cpython",
        "info": [int(part) for part in version.split(".")[:2]], "suffix": ".so",
        "include": "/opt/fake/include", "purelib": "/opt/fake/lib",
    }  # fmt: skip
    return json.dumps({**said, **changes})


def test_the_launchers_choice_is_the_default_and_an_environment_is_not_resolved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHFORK_TARGET_PYTHON", sys.executable)
    found = probe(headers=False)
    assert found.executable == Path(sys.executable)
    assert (found.tag, found.extension_suffix) == (sample.PYTHON_TAG, sample.SUFFIX)
    found = sample.environment(tmp_path / "ä b")
    assert found.executable.is_relative_to(tmp_path)
    assert found.site_packages.is_relative_to(tmp_path)


def test_a_free_threaded_build_has_a_tag_of_its_own(tmp_path: Path) -> None:
    suffix = ".cpython-314t-x86_64-linux-gnu.so"
    assert probe(fake(tmp_path, answer("3.14.2", suffix=suffix)), headers=False).tag == "cp314t"


def test_what_is_no_interpreter_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolMissingError, match=r"no Python interpreter 'python9\.99'") as caught:
        probe("python9.99")
    assert caught.value.exit_code == 16 and "--python" in caught.value.next
    (tmp_path / "empty").write_text("")
    with pytest.raises(ToolMissingError, match="cannot be run"):
        probe(tmp_path / "empty")
    with pytest.raises(ToolMissingError, match="not a working Python 3"):
        probe(fake(tmp_path, "hello"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (answer("3.9.18"), "3.10 is the oldest"),
        (answer("3.10.14", implementation="pypy"), "CPython"),
    ],
)
def test_unsupported_interpreters_are_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ToolMissingError) as caught:
        probe(fake(tmp_path, text))
    assert why in caught.value.why


def test_missing_headers_name_the_package_that_has_them(tmp_path: Path) -> None:
    path = fake(tmp_path, answer("3.12.1", include=os.fspath(tmp_path)))
    assert probe(path, headers=False).version == "3.12.1"
    with pytest.raises(ToolMissingError) as caught:
        probe(path)
    assert caught.value.where == str(tmp_path / "Python.h")
    assert "python3.12-dev" in caught.value.next and "python3.12-devel" in caught.value.next


def test_a_wheel_for_another_python_is_refused_with_both_versions(tmp_path: Path) -> None:
    found = probe(fake(tmp_path, answer("3.12.1")), headers=False)
    require_python_tag(found, "cp312", "x.whl")
    with pytest.raises(BaseRefusedError, match=r"Python 3\.10.*Python 3\.12\.1") as caught:
        require_python_tag(found, "cp310", "x.whl")
    assert "--python python3.10" in caught.value.next
