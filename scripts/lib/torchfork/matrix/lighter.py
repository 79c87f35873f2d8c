"""The compilation of tier (d): all files and checks, nothing that only a finished wheel needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from .. import toolchain
from ..bases.base import Base
from ..stages import symbols
from ..stages.symbols import Symbols
from ..toolchain import Toolchain
from ..units import Unit

# Objects that nobody runs: names and types are checked, nothing is optimised.
_FLAGS = {"-O3": "-O0", "-O2": "-O0"}


def tools(base: Base, env: Mapping[str, str]) -> Toolchain:
    """The host's compilers; a base for another machine is compiled for this one."""
    return replace(toolchain.find(base, env), jobs=toolchain.job_count(env))


def units(all_units: Sequence[Unit]) -> list[Unit]:
    """The objects with the flags of a check."""
    return [
        replace(unit, flags=tuple(_FLAGS.get(flag, flag) for flag in unit.flags))
        for unit in all_units
    ]


def needed_signatures(objects: Iterable[Symbols]) -> list[str]:
    """What the objects need of upstream's libraries, as signatures."""
    everything = list(objects)
    defined = {name for found in everything for name in found.defined}
    needed = {name for found in everything for name in found.undefined} - defined
    texts = (symbols.normal_signature(text) for text in symbols.demangle(needed).values())
    return sorted(text for text in texts if text.startswith(("at::", "torch::", "c10::")))
