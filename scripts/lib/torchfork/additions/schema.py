"""What can be read in the text of a schema before the code generator parses it."""

from __future__ import annotations

import re
from collections.abc import Iterator


def same_schema(one: str, other: str) -> bool:
    """Whether two schemas differ in white space only."""
    return re.sub(r"\s+", "", one) == re.sub(r"\s+", "", other)


def words(value: object) -> Iterator[str]:
    """The words of a field that is a comma-separated text or a list."""
    parts = value if isinstance(value, list) else str(value).split(",")
    return (str(part).strip() for part in parts if str(part).strip())


def argument_names(schema: str) -> list[str]:
    """The names of a schema's arguments, out= arguments included."""
    inside = _without_annotations(schema.partition("(")[2].rpartition("->")[0].strip())
    parts = re.split(r",\s*(?![^\[]*\])", inside.removesuffix(")"))
    declared = [part.partition("=")[0].split() for part in parts]
    return [part[-1] for part in declared if len(part) > 1]


def result_names(schema: str) -> tuple[list[str], bool]:
    """How formulas name the results, and whether the schema gives them these names."""
    returned = _without_annotations(schema.rpartition("->")[2]).strip()
    parts = [p.split() for p in returned.strip("()").split(",") if p.strip()]
    if not parts:
        return [], False
    names = [part[1] if len(part) > 1 else "" for part in parts]
    if all(names):
        return names, True
    numbered = ["result"] if len(names) == 1 else [f"result{n}" for n in range(len(names))]
    return [name or number for name, number in zip(names, numbered, strict=True)], False


def _without_annotations(text: str) -> str:
    """'Tensor(a!) x' as 'Tensor x'."""
    return re.sub(r"(?<=\w)\([^()]*\)", "", text)
