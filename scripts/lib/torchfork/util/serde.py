"""JSON to frozen dataclasses and back, by their type annotations."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import cattrs

T = TypeVar("T")


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
