"""What changed upstream between two subjects, as far as it concerns additions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The parts of the answer, in the order in which a reader wants them, and their titles.
SECTIONS = {
    "touched": "schemas that the operators here touch",
    "hidden": "symbols that the additions need and upstream hides now",
    "wrapper": "text around installed headers",
    "templates": "codegen templates",
    "validations": "validations in the code generator",
    "enumerations": "tags and dispatch keys",
}


def between(before: Mapping[str, Any], after: Mapping[str, Any], since: str) -> dict[str, Any]:
    """Lines for each section that has any; `since` names the earlier subject."""
    sections = {
        "touched": _mapping(before["touched"], after["touched"]),
        "wrapper": _wrapper(before, after),
        "templates": _digests(before["templates"], after["templates"]),
        "validations": [
            f"+ {line}" for line in after["validations"] if line not in set(before["validations"])
        ],
        "enumerations": [
            line
            for key in ("tags", "dispatch_keys")
            for line in _sets(before[key], after[key], key.replace("_", " "))
        ],
    }
    return {
        "since": since,
        "operators": after["operators"] - before["operators"],
        "sections": {key: lines for key, lines in sections.items() if lines},
    }


def _mapping(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    lines = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        lines += [f"- {old}"] if old else []
        lines += [f"+ {new}"] if new else []
    return lines


def _digests(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    lines = [f"- {name}" for name in sorted(before.keys() - after.keys())]
    lines += [f"+ {name}" for name in sorted(after.keys() - before.keys())]
    common = sorted(before.keys() & after.keys())
    return lines + [f"~ {name}" for name in common if before[name] != after[name]]


def _sets(before: list[str], after: list[str], title: str) -> list[str]:
    gone, new = sorted(set(before) - set(after)), sorted(set(after) - set(before))
    lines = [f"- {title}: {', '.join(gone)}"] if gone else []
    return lines + ([f"+ {title}: {', '.join(new)}"] if new else [])


def _wrapper(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    if "wrapper" not in before or "wrapper" not in after or before["wrapper"] == after["wrapper"]:
        return []
    return [
        f"{sign} {place}: {text!r}"
        for sign, facts in (("-", before), ("+", after))
        for place, text in facts["wrapper"].items()
        if text
    ] or ["- no wrapper any more"]
