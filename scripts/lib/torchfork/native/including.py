"""Which headers a source reaches, and whether what another one reaches could hide a missing one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .cxx_names import Reader

_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(include|if\w*|el\w+|endif)\b[ \t]*(.*)$", re.MULTILINE)
_INCLUDED = re.compile(r"[<\"]([^>\"]+)[>\"]")
_OPERATOR = re.compile(r"ATen/ops/(\w+?)(?:_native|_ops|_meta|_\w+_dispatch)?\.h")
_WORD = re.compile(r"[A-Za-z_]\w*")
_GUARDS = re.compile(r"^#define (TORCH_ASSERT_\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """A source with what decides in which company it may be compiled."""

    reaches: frozenset[str]  # headers as they are included: 'ATen/core/Tensor.h'
    words: frozenset[str]  # of the source and of its project's own headers
    guards: frozenset[str]  # macros that have upstream's headers refuse others
    names: frozenset[str]  # what the source may define for itself

    def may_follow(self, others: Sequence[Source]) -> bool:
        """Whether it compiles after the others in one file only where it compiles alone.

        They must lend it no name: a header that they reach and it does not may only be that of an
        operator that it does not name.
        """
        lent = frozenset[str]().union(*(other.reaches for other in others)) - self.reaches
        return (
            all(self.guards == other.guards for other in others)
            and not any(self.names & other.names for other in others)
            and all(self._indifferent_to(header) for header in lent)
        )

    def _indifferent_to(self, header: str) -> bool:
        found = _OPERATOR.fullmatch(header)
        if found is None:
            return False
        declared = (found[1], f"structured_{found[1]}")
        return not any(word.startswith(declared) for word in self.words)


@dataclass
class Headers:
    """The headers below some folders, each read once."""

    folders: Sequence[Path]  # in the order in which a compiler looks
    own: Path  # the folder whose headers are the project's own, not upstream's
    _direct: dict[Path, tuple[str, ...]] = field(default_factory=dict)
    _places: dict[str, Path | None] = field(default_factory=dict)

    def source(self, path: Path) -> Source:
        """What a source reaches by whatever way; all branches of a condition are taken."""
        reached: set[str] = set()
        ours: list[Path] = [path]
        waiting = list(self._includes(path))
        while waiting:
            name = waiting.pop()
            place = self._place(name)
            if name in reached:
                continue
            if place is not None and place.is_relative_to(self.own):
                ours.append(place)
            reached.add(name)
            waiting += self._includes(place) if place else ()
        text = "\n".join(each.read_text(encoding="utf-8", errors="replace") for each in ours)
        upstreams = {name for name in reached if not self._is_own(name)}
        guards = frozenset(_GUARDS.findall(text))
        declared = Reader(path.read_text(encoding="utf-8", errors="replace")).names.declared
        return Source(
            reaches=frozenset(upstreams),
            words=frozenset(_WORD.findall(text)),
            guards=guards,
            names=declared - guards,  # which are undefined again between two files
        )

    def _is_own(self, name: str) -> bool:
        place = self._place(name)
        return place is not None and place.is_relative_to(self.own)

    def _place(self, name: str) -> Path | None:
        """Where a header lies; None for the C++ library's and the system's."""
        if name not in self._places:
            candidates = (folder / name for folder in self.folders)
            self._places[name] = next((path for path in candidates if path.is_file()), None)
        return self._places[name]

    def _includes(self, path: Path) -> tuple[str, ...]:
        if path not in self._direct:
            text = path.read_text(encoding="utf-8", errors="replace")
            self._direct[path] = tuple(dict.fromkeys(_included(text)))
        return self._direct[path]


def _included(text: str) -> Iterable[str]:
    """The names of included headers; what stands for builds without headers per operator is not."""
    skipped: list[bool] = []
    for directive, rest in _DIRECTIVE.findall(text):
        if directive == "endif":
            del skipped[-1:]
        elif directive.startswith("if"):
            skipped.append(directive == "ifndef" and rest.strip() == "AT_PER_OPERATOR_HEADERS")
        elif directive.startswith("el"):
            skipped[-1:] = [False]
        elif not any(skipped) and (found := _INCLUDED.match(rest)):
            yield found[1]
