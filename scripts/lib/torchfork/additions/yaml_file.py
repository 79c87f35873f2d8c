"""A YAML file of additions: its entries, what their text says, and the lines they stand on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ..errors import AdditionsError
from . import paths

# All of upstream's native_functions.yaml has 0.7 MB, nests 3 deep and uses no alias.
MAX_BYTES = 4_000_000
MAX_DEPTH = 20
MAX_ALIASES = 1000

if TYPE_CHECKING:
    Loader = yaml.SafeLoader | yaml.CSafeLoader
_FAST_LOADER: type[Loader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FUNCTION_NAME = re.compile(r"^([^\W\d][\w:]*(?:\.\w+)?)\(")
# What PyYAML's constructors raise for a scalar that its tag does not fit, beside YAMLError.
_BAD_VALUE = (ValueError, TypeError, LookupError, AttributeError, OverflowError)


def words(value: object) -> Iterator[str]:
    """The words of a field that is a comma-separated text or a list."""
    parts = value if isinstance(value, list) else str(value).split(",")
    return (str(part).strip() for part in parts if str(part).strip())


def same_schema(one: str, other: str) -> bool:
    """Whether two schemas differ in white space only."""
    return re.sub(r"\s+", "", one) == re.sub(r"\s+", "", other)


def _without_annotations(text: str) -> str:
    """'Tensor(a!) x' as 'Tensor x'."""
    return re.sub(r"(?<=\w)\([^()]*\)", "", text)


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
        match = _FUNCTION_NAME.match(self.key)
        return match[1] if match else self.key

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions that it declares or has generated, each with its overload."""
        return (self.name, *words(self.fields.get("autogen", [])))

    @property
    def parameters(self) -> str:
        """The text between the parentheses of its schema."""
        return self.key.partition("(")[2].rpartition("->")[0].strip().removesuffix(")")

    @property
    def types(self) -> dict[str, str]:
        """The types of the schema's arguments by their names, out= arguments included."""
        parts = re.split(r",\s*(?![^\[]*\])", _without_annotations(self.parameters))
        declared = [part.partition("=")[0].split() for part in parts]
        return {part[-1]: part[0] for part in declared if len(part) > 1}

    @property
    def arguments(self) -> list[str]:
        """The names of the schema's arguments."""
        return list(self.types)

    @property
    def returns(self) -> str:
        """What the schema returns."""
        return self.key.rpartition("->")[2].strip()

    @property
    def results(self) -> tuple[list[str], bool]:
        """How formulas name the results, and whether the schema gives them these names."""
        returned = _without_annotations(self.returns)
        parts = [p.split() for p in returned.strip("()").split(",") if p.strip()]
        names = [part[1] if len(part) > 1 else "" for part in parts]
        if all(names):
            return names, bool(names)
        numbered = ["result"] if len(names) == 1 else [f"result{n}" for n in range(len(names))]
        return [name or number for name, number in zip(names, numbered, strict=True)], False

    @property
    def variants(self) -> set[str]:
        """'function' and 'method', as far as it asks for them."""
        return set(words(self.fields.get("variants", "function")))

    @property
    def structured(self) -> bool:
        """Whether its kernels, or those of another entry, are structured."""
        return bool({"structured", "structured_delegate"} & self.fields.keys())

    @property
    def delegate(self) -> str:
        """The entry whose structured kernels it has; ''."""
        return str(self.fields.get("structured_delegate", ""))

    @property
    def kernels(self) -> dict[str, str]:
        """The kernels by their dispatch key."""
        named = self.fields.get("dispatch")
        groups = named.items() if isinstance(named, dict) else ()
        return {key: str(kernel) for keys, kernel in groups for key in words(keys)}

    def where(self, field: str = "") -> str:
        """'file:line' of the entry or of one of its fields."""
        return f"{self.file}:{self.lines.get(field, self.line)}"


@dataclass(frozen=True)
class YamlFile:
    """A YAML file of the additions: its text, which is merged verbatim, and its entries."""

    path: Path
    text: str
    entries: tuple[Entry, ...]

    @property
    def functions(self) -> set[str]:
        """Those of all its entries."""
        return {name for entry in self.entries for name in entry.functions}

    def entry_at(self, line: int) -> Entry | None:
        """The entry that a line belongs to."""
        before = [entry for entry in self.entries if entry.line <= line]
        return before[-1] if before else None


def parse(path: Path, title: str, root: Path) -> YamlFile:
    """Read one YAML file of the additions below root; a missing one is an empty one.

    Raises AdditionsError: malformed, too large, duplicate key, not a list of mappings with `title`.
    """
    if not paths.is_file(path, root):
        return YamlFile(path, "", ())
    text = paths.read_text(path, MAX_BYTES)
    try:
        return _parsed(path, title, text, _FAST_LOADER)
    except yaml.YAMLError:
        pass
    try:  # the slow parser says better what is wrong
        return _parsed(path, title, text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise _malformed(path, text, error) from error


def _parsed(path: Path, title: str, text: str, loader_class: type[Loader]) -> YamlFile:
    _check_limits(path, text, loader_class)
    loader = loader_class(text)
    node = loader.get_single_node()
    if node is None:
        return YamlFile(path, text, ())
    if not isinstance(node, yaml.SequenceNode):
        raise AdditionsError(
            "the file is not a list of entries",
            where=f"{path}:{node.start_mark.line + 1}",
            next=f"start each entry with '- {title}: ...'",
        )
    return YamlFile(path, text, tuple(_entry(n, path, title, loader) for n in node.value))


def _check_limits(path: Path, text: str, loader_class: type[Loader]) -> None:
    """Refuse what would take exponential memory or exhaust the stack, before nodes are made."""
    anchored: list[bool] = []  # the collections that are open
    aliases = 0
    for event in yaml.parse(text, Loader=loader_class):
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            anchored.append(event.anchor is not None)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            anchored.pop()
        aliases += isinstance(event, yaml.AliasEvent)
        problem = ""
        if len(anchored) > MAX_DEPTH:
            problem = f"collections are nested more than {MAX_DEPTH} deep"
        elif isinstance(event, yaml.AliasEvent) and any(anchored):
            problem = "an alias stands inside a node that has an anchor itself"
        elif aliases > MAX_ALIASES:
            problem = f"there are more than {MAX_ALIASES} aliases"
        elif getattr(event, "explicit", False) and isinstance(event, yaml.DocumentStartEvent):
            problem = "'---' starts a document of its own, and the file is put after upstream's"
        elif len(anchored) == 1 and (getattr(event, "flow_style", False) or _is_indented(event)):
            problem = "the list of entries is not written as upstream's, which it is put after"
        if problem:
            raise AdditionsError(
                f"malformed YAML: {problem}",
                where=f"{path}:{event.start_mark.line + 1 if event.start_mark else 1}",
                next="write the entries out, as upstream's YAML files do: each '- ' at its line's "
                "start",
            )


def _is_indented(event: yaml.Event) -> bool:
    start = isinstance(event, yaml.SequenceStartEvent)
    return bool(start and event.start_mark and event.start_mark.column)


def _malformed(path: Path, text: str, error: yaml.YAMLError) -> AdditionsError:
    mark = getattr(error, "problem_mark", None)
    if re.search("end of stream|stream end", str(getattr(error, "problem", ""))):
        # What was never closed is of more help than the last line of the file.
        mark = getattr(error, "context_mark", None) or mark
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        why = f"character {error.character!r}: {error.reason}"
    else:
        line = mark.line + 1 if mark else 1
        why = str(getattr(error, "problem", None) or error)
    return AdditionsError(
        "malformed YAML",
        where=f"{path}:{line}",
        why=why,
        next="correct the line; a schema that holds ': ' or starts with a special character needs "
        "quotes",
    )


def _entry(node: yaml.Node, path: Path, title: str, loader: Loader) -> Entry:
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        raise AdditionsError(
            f"an entry is not a mapping with a '{title}'",
            where=f"{path}:{line}",
            next=f"write it as '- {title}: ...' with its fields indented below",
        )
    fields, lines = {}, {}
    for key, key_line, value in _pairs(node, path):
        fields[key] = _value(value, path, loader)
        lines[key] = key_line
    if not isinstance(fields.get(title), str):
        raise AdditionsError(
            f"an entry has no '{title}'",
            where=f"{path}:{line}",
            why=f"each entry of {path.name} starts with '- {title}:' and a schema",
            next=f"add '{title}:', or delete the entry",
        )
    if fields[title] != " ".join(fields[title].split()):
        raise AdditionsError(
            f"a schema has a line end, or blanks where one belongs: {fields[title]!r:.200}",
            where=f"{path}:{line}",
            why="PyTorch's parser compares it with its own spelling",
            next="write it in one line with single blanks; a text after '>' ends with a line end, "
            "one after '>-' does not",
        )
    return Entry(path, line, fields[title], fields, lines)


def _pairs(node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, int, yaml.Node]]:
    """Each key of a mapping with its line and value; nested mappings are checked as well."""
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
            raise AdditionsError(
                "a key is not a plain word",
                where=f"{path}:{line}",
                next="write each key as one word, or as words separated by commas",
            )
        key = str(key_node.value)
        if key in seen:
            raise AdditionsError(
                f"the key '{key}' stands twice in one entry",
                where=f"{path}:{line}",
                why=f"line {seen[key]} has it already, and YAML would silently keep the last one",
                next=f"delete one of the two; an argument called '{key}' needs another name",
            )
        seen[key] = line
        if isinstance(value_node, yaml.MappingNode):
            for _ in _pairs(value_node, path):
                pass
        yield key, line, value_node


def _value(node: yaml.Node, path: Path, loader: Loader) -> Any:
    try:
        return loader.construct_object(node, deep=True)
    except _BAD_VALUE as error:
        shown = str(node.value)
        raise AdditionsError(
            "malformed YAML: a value does not have the form of its type",
            where=f"{path}:{node.start_mark.line + 1}",
            why=f"{shown[:60]}{'...' if len(shown) > 60 else ''} is read as "
            f"{node.tag.rpartition(':')[2]}: {str(error)[:200]}",
            next="put quotes around the value if it is text",
        ) from error
