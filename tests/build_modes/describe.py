"""Tells what a torch says of some operators, as JSON; run by the interpreter that has it.

The argument is a JSON list of base names. Nothing here may depend on where torch is installed.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from typing import Any

import torch
import torch.overrides


def main() -> None:
    """Answer on the last line of stdout."""
    bases = json.loads(sys.argv[1])
    schemas = {
        schema.name + (f".{schema.overload_name}" if schema.overload_name else ""): str(schema)
        for schema in torch._C._jit_get_all_schemas()
    }
    own = re.compile(rf"aten::_?({'|'.join(bases)})_?(_copy)?(\..*)?")
    ours = {name: text for name, text in schemas.items() if own.fullmatch(name)}
    answer = {
        "schemas": ours,
        "native": {n: s for n, s in schemas.items() if n.startswith("aten::")},
        "tags": {name: _tags(name) for name in ours},
        "dispatch": {name: _dispatch(name) for name in ours},
        "nodes": _nodes(bases),
        "signatures": {name: _signatures(name) for name in bases},
        "docstrings": {name: _docstrings(name) for name in bases},
        "overrides": _overrides(bases),
        "symbols": _symbols(bases),
        "namespaces": {name: _places(name) for name in bases},
    }
    sys.stdout.write("\n" + json.dumps(answer, sort_keys=True) + "\n")


def _overload(qualified: str) -> Any:
    name, _, overload = qualified.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, name), overload or "default")


def _tags(qualified: str) -> list[str]:
    return sorted(str(tag) for tag in _overload(qualified).tags)


def _dispatch(qualified: str) -> list[str]:
    """Dispatch keys that have a kernel, and how it is registered; without places in sources."""
    text = torch._C._dispatch_dump_table(qualified)
    lines = [re.sub(r"registered at \S+|\[ ?\S*:\d+ ?\]", "", line) for line in text.splitlines()]
    return [re.sub(r"\s+", " ", line).strip() for line in lines]


def _nodes(bases: list[str]) -> list[str]:
    """Autograd nodes of ours that Python knows."""
    plain = {base.replace("_", "").lower() for base in bases}
    return sorted(
        name
        for name in dir(torch._C._functions)
        if re.sub(r"Backward\d+.*", "", name).lower() in plain
    )


def _places(name: str) -> list[str]:
    homes = {"torch": torch, "Tensor": torch.Tensor, "_VF": torch._C._VariableFunctions}
    return [home for home, module in homes.items() if hasattr(module, name)]


def _signatures(name: str) -> dict[str, str]:
    """What the argument parser says that it takes: its complaint about what nobody can mean."""
    told = {}
    for home, function in (
        ("torch", getattr(torch, name, None)),
        ("Tensor", getattr(torch.Tensor, name, None)),
    ):
        if function is None:
            continue
        try:
            function(object(), object(), nonsense=object())
        except TypeError as error:
            told[home] = str(error)
        except Exception as error:
            told[home] = f"{type(error).__name__}: {error}"
    return told


def _docstrings(name: str) -> dict[str, str | None]:
    return {
        home: inspect.getdoc(getattr(module, name))
        for home, module in (("torch", torch), ("Tensor", torch.Tensor))
        if hasattr(module, name)
    }


def _overrides(bases: list[str]) -> list[str]:
    names = []
    for function, stand_in in torch.overrides.get_testing_overrides().items():
        if getattr(function, "__name__", "") in bases:
            names.append(f"{function.__name__}{inspect.signature(stand_in)}")
    return sorted(names)


def _symbols(bases: list[str]) -> dict[str, bool]:
    """Whether a name is among the symbols that were numbered when libtorch was compiled."""
    import pathlib

    place = pathlib.Path(torch.__file__).parent / "include/ATen/core/aten_interned_strings.h"
    text = place.read_text(encoding="utf-8")
    return {name: f"_(aten, {name})" in text for name in bases}


if __name__ == "__main__":
    main()
