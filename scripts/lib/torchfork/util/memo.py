"""Kept results: a value in a JSON file, valid for as long as what it was made from is the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from . import files, serde

T = TypeVar("T")


def remember(note: Path, key: str, kind: type[T], make: Callable[[], T]) -> T:
    """The value that `note` keeps for `key`, else the one that `make` gives, which is then kept.

    kind: the value's type, a dataclass or one that JSON has; a file of another form counts as none.
    """
    known = recall(note, key, kind)
    if known is not None:
        return known
    made = make()
    keep(note, key, made)
    return made


def recall(note: Path, key: str, kind: type[T]) -> T | None:
    """The value that `note` keeps for `key`, if it does."""
    known = files.read_json(note)
    if not isinstance(known, dict) or known.get("key") != key:
        return None
    try:
        return serde.load(kind, known.get("value"))
    except serde.MismatchError:
        return None


def keep(note: Path, key: str, value: object) -> None:
    """Keep a value for `key`, in place of what was kept before."""
    files.write_json(note, {"key": key, "value": serde.dump(value)})
