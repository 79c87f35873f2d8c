"""Kept results: used for the same key and form, made again otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torchfork.util import files, memo


@dataclass(frozen=True)
class Part:
    path: Path
    sizes: tuple[int, ...] = ()
    note: str | None = None


@dataclass(frozen=True)
class Result:
    name: str
    parts: tuple[Part, ...]


VALUE = Result("a", (Part(Path("x/y"), (1, 2)), Part(Path("z"), note="n")))


def test_a_result_is_made_once_for_a_key(tmp_path: Path) -> None:
    note, calls = tmp_path / "deep" / "note.json", []

    def make() -> Result:
        calls.append(1)
        return VALUE

    assert memo.remember(note, "k1", Result, make) == VALUE
    assert memo.remember(note, "k1", Result, make) == VALUE
    assert len(calls) == 1
    assert memo.remember(note, "k2", Result, make) == VALUE
    assert len(calls) == 2
    assert memo.recall(note, "k1", Result) is None


def test_what_cannot_be_read_is_made_again(tmp_path: Path) -> None:
    note = tmp_path / "note.json"
    for content in ("", "[]", "{", '{"key": "k"}', '{"key": "k", "value": {"name": "a"}}'):
        note.write_text(content)
        assert memo.recall(note, "k", Result) is None, content
    files.write_json(note, {"key": "k", "value": {"name": "a", "parts": [{"path": 1}]}})
    assert memo.remember(note, "k", Result, lambda: VALUE) == VALUE
    assert memo.recall(note, "k", Result) == VALUE
