"""Reads an additions directory: the YAML files with their line numbers, and the sources."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import AdditionsError, CollisionError
from ..util import files

NATIVE = "native_functions_additions.yaml"
DERIVATIVES = "derivatives_additions.yaml"
DEPRECATED = "deprecated_additions.yaml"
SOURCES = "aten_src"
SOURCE_SUFFIXES = frozenset({".cpp", ".cu", ".h", ".cuh"})

_FUNCTION_NAME = re.compile(r"^([A-Za-z_][\w:]*(?:\.\w+)?)\(")


@dataclass(frozen=True)
class Entry:
    """One entry of a YAML file of the additions, and the lines it stands on."""

    file: Path
    line: int
    key: str  # the text of its 'func' or 'name'
    fields: dict[str, Any]
    lines: dict[str, int]  # where each of its fields stands

    @property
    def name(self) -> str:
        """The operator's name with its overload, 'hypot' or 'hypot.out'."""
        found = _FUNCTION_NAME.match(self.key)
        return found[1] if found else self.key

    def where(self, field: str = "") -> str:
        """'file:line' of the entry or of one of its fields."""
        return f"{self.file}:{self.lines.get(field, self.line)}"


@dataclass(frozen=True)
class YamlFile:
    """A YAML file of the additions: its text, which is merged verbatim, and its entries."""

    path: Path
    text: str
    entries: tuple[Entry, ...]

    def entry_at(self, line: int) -> Entry | None:
        """The entry that a line belongs to."""
        before = [entry for entry in self.entries if entry.line <= line]
        return before[-1] if before else None


@dataclass(frozen=True)
class Additions:
    """Everything that an additions directory adds to upstream."""

    root: Path
    native: YamlFile
    derivatives: YamlFile
    deprecated: YamlFile
    sources: tuple[Path, ...]  # below aten_src, sorted

    @property
    def source_root(self) -> Path:
        """The image of aten/src/ATen."""
        return self.root / SOURCES

    @property
    def headers(self) -> tuple[Path, ...]:
        """The headers among the sources."""
        return tuple(path for path in self.sources if path.suffix in {".h", ".cuh"})

    @property
    def manual_headers(self) -> tuple[str, ...]:
        """Headers of derivative helpers, as generated autograd code includes them."""
        return tuple(
            f"ATen/{path.relative_to(self.source_root).as_posix()}"
            for path in self.headers
            if path.name.endswith("FunctionsManual.h")
        )

    def native_entry(self, name: str) -> Entry | None:
        """The entry that declares an operator by its name with overload."""
        return next((entry for entry in self.native.entries if entry.name == name), None)

    def fingerprint(self) -> str:
        """A hash over everything that a build reads of these additions."""
        yamls = [
            f.path for f in (self.native, self.derivatives, self.deprecated) if f.path.exists()
        ]
        patches = files.tree_files(self.root / "patches")
        return files.fingerprint([*yamls, *self.sources, *patches], self.root)


class _Loader(yaml.SafeLoader):
    """A safe loader that is handed to compose() only; values are built one mapping at a time."""


def _scalar_keys(node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, int, yaml.Node]]:
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if key in seen:
            raise AdditionsError(
                f"the key '{key}' stands twice in one entry",
                where=f"{path}:{line}",
                why=f"line {seen[key]} has it already, and YAML would silently keep the last one",
                next="delete one of the two",
            )
        seen[key] = line
        if isinstance(value_node, yaml.MappingNode):
            for _ in _scalar_keys(value_node, path):
                pass
        yield key, line, value_node


def _entry(node: yaml.Node, path: Path, title: str, loader: _Loader) -> Entry:
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        raise AdditionsError(
            f"an entry is not a mapping with a '{title}'",
            where=f"{path}:{line}",
            next=f"write it as '- {title}: ...' with its fields indented below",
        )
    fields, lines = {}, {}
    for key, key_line, value in _scalar_keys(node, path):
        fields[key] = loader.construct_object(value, deep=True)
        lines[key] = key_line
    if not isinstance(fields.get(title), str):
        raise AdditionsError(
            f"an entry has no '{title}'",
            where=f"{path}:{line}",
            why=f"each entry of {path.name} starts with '- {title}:' and a schema",
            next=f"add '{title}:', or delete the entry",
        )
    return Entry(path, line, fields[title], fields, lines)


def _malformed(path: Path, error: Exception) -> AdditionsError:
    mark = getattr(error, "problem_mark", None)
    if re.search("end of stream|stream end", str(getattr(error, "problem", ""))):
        # What was never closed is of more help than the last line of the file.
        mark = getattr(error, "context_mark", None) or mark
    where = f"{path}:{mark.line + 1}" if mark else str(path)
    return AdditionsError(
        "malformed YAML",
        where=where,
        why=str(getattr(error, "problem", None) or error),
        next="correct the line; a schema that holds ': ' or starts with a special character needs "
        "quotes",
    )


def parse_yaml(path: Path, title: str) -> YamlFile:
    """Read one YAML file of additions; a missing one is an empty one.

    Raises AdditionsError (malformed, duplicate key, not a list of mappings with `title`).
    """
    if not path.exists():
        return YamlFile(path, "", ())
    try:
        text = path.read_text(encoding="utf-8")
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return YamlFile(path, text, ())
        if not isinstance(root, yaml.SequenceNode):
            raise AdditionsError(
                "the file is not a list of entries",
                where=f"{path}:{root.start_mark.line + 1}",
                next=f"start each entry with '- {title}: ...'",
            )
        return YamlFile(path, text, tuple(_entry(n, path, title, loader) for n in root.value))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _malformed(path, error) from error


def _refuse_duplicates(file: YamlFile) -> None:
    seen: dict[str, Entry] = {}
    for entry in file.entries:
        first = seen.setdefault(entry.name, entry)
        if first is not entry:
            raise CollisionError(
                f"'{entry.name}' is declared twice",
                where=entry.where(),
                why=f"{first.where()} declares it already",
                next="delete one of the two, or give one an overload name (name.overload)",
            )


def load(root: Path) -> Additions:
    """Read an additions directory.

    Raises AdditionsError where it is none or a file of it is malformed, CollisionError where it
    declares an operator twice.
    """
    root = root.resolve()
    native = parse_yaml(root / NATIVE, "func")
    if not native.path.exists():
        raise AdditionsError(
            f"no additions directory: there is no {NATIVE}",
            where=str(root),
            next="name a directory that holds one with --additions DIR",
        )
    derivatives = parse_yaml(root / DERIVATIVES, "name")
    _refuse_duplicates(native)
    _refuse_duplicates(derivatives)
    source_root = root / SOURCES
    sources = files.tree_files(source_root) if source_root.is_dir() else []
    kept = tuple(path for path in sources if path.suffix in SOURCE_SUFFIXES)
    return Additions(root, native, derivatives, parse_yaml(root / DEPRECATED, "name"), kept)
