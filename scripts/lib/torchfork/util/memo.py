"""Values as JSON: frozen dataclasses by their type annotations, and results that are kept.

A kept result is a value in a JSON file, valid for as long as what it was made from is the same.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from . import files

if TYPE_CHECKING:
    import cattrs

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
        return load(kind, known.get("value"))
    except MismatchError:
        return None


def keep(note: Path, key: str, value: object) -> None:
    """Keep a value for `key`, in place of what was kept before."""
    # Not write_json: with an indent, json takes ten times as long.
    files.write_text(note, json.dumps({"key": key, "value": dump(value)}))


class MismatchError(ValueError):
    """JSON that does not have the form of the dataclass it is read as."""


def dump(value: object) -> object:
    """What json.dumps takes, for a dataclass or a collection of them."""
    return _converter().unstructure(value)


def load(kind: type[T], data: object) -> T:
    """A `kind` made of what json.loads gave. Raises MismatchError where the form differs."""
    import cattrs

    try:
        return _converter().structure(data, kind)
    except (cattrs.BaseValidationError, KeyError, TypeError, ValueError) as error:
        raise MismatchError("; ".join(cattrs.transform_error(error))) from error


@functools.cache
def _converter() -> cattrs.Converter:
    # Imported on first use: a run that finds everything up to date needs none of it.
    from cattrs.preconf.json import make_converter

    converter = make_converter()
    converter.register_unstructure_hook(Path, str)
    converter.register_structure_hook(Path, lambda text, _: Path(text))
    return converter
