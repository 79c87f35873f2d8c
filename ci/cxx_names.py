"""What a C++ file declares for itself: which files may be compiled as one.

Files that are compiled as one share their namespaces. A name that one of them declares may then be
found by another that means a different one: its own in an outer namespace, or a header's. Mostly
the compiler refuses; where types agree it takes the wrong one without a word, as with two `static
PyModuleDef _module`, each in a namespace of its own. This reads text, not a syntax tree, and errs
on the side of names: a name too many costs a group a member, nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

NOISE = re.compile(
    r'R"(?P<mark>[^()\\\s]*)\(.*?\)(?P=mark)"'  # raw string
    r'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
    r"|//[^\n]*|/\*.*?\*/",
    re.DOTALL,
)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
DEFINED = re.compile(r"\s*#\s*(define|undef)\s+(\w+)(.*)", re.DOTALL)
TOKEN = re.compile(r"[A-Za-z_]\w*|::|->|\[\[|\]\]|[^\s\w]|\d[\w.']*")
NAME = re.compile(r"[A-Za-z_]\w*")
ALIAS = re.compile(r"\bnamespace \w+ = [\w:]+;")
MACRO = re.compile(r"[A-Z][A-Z0-9_]+")
# Words that stand before a parenthesis or an initializer and name nothing.
WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        alignas auto bool char const constexpr decltype default delete double explicit extern
        final float for if inline int long mutable noexcept nullptr operator override requires
        return short signed sizeof static static_assert template this thread_local true typename
        unsigned using virtual void volatile while __attribute__ __declspec
        """,
    )
)
TYPES = frozenset({"struct", "class", "union", "enum"})
QUALIFIED = frozenset({"::", "~", "operator"})
OPEN, CLOSE = frozenset("([{"), frozenset(")]}")


@dataclass(frozen=True)
class Names:
    """Names of a file at namespace scope, and what its text refers to."""

    local: frozenset[str]
    """Static, or in a namespace without a name."""
    shared: frozenset[str]
    """All others; they disturb only where no header tells other files of them."""
    meanings: Mapping[str, str]
    """Aliases, and macros that are not undefined again, with what they stand for."""
    used: frozenset[str]
    """Identifiers without a qualifier before them, declarations included."""

    @property
    def declared(self) -> frozenset[str]:
        """All that two files in one must not both define."""
        return self.local | self.shared | frozenset(self.meanings)


class Reader:
    """Reads one file's text."""

    def __init__(self, text: str) -> None:
        # A literal leaves a space, or what stands on its two sides would become one word.
        self.text = NOISE.sub(" ", text)

    @cached_property
    def macros(self) -> dict[str, str]:
        defined: dict[str, str] = {}
        for line in DIRECTIVE.findall(self.text):
            if found := DEFINED.match(line):
                defined[found[2]] = found[3].strip()
                if found[1] == "undef":
                    del defined[found[2]]
        return defined

    @cached_property
    def tokens(self) -> list[str]:
        return TOKEN.findall(DIRECTIVE.sub(" ", self.text))

    @cached_property
    def used(self) -> frozenset[str]:
        befores = ["", *self.tokens]
        return frozenset(
            token
            for before, token in zip(befores, self.tokens, strict=False)
            if NAME.fullmatch(token) and before not in ("::", ".", "->")
        ) | frozenset(re.findall(r"\w+", " ".join(DIRECTIVE.findall(self.text))))

    def declarations(self) -> Iterator[tuple[list[str], bool]]:
        """The tokens of each declaration outside functions and types; whether its scope is unnamed.

        A body stands in them as `{}`.
        """
        scopes: list[bool] = []  # of the namespaces that are open: without a name?
        head: list[str] = []
        index = 0
        while index < len(self.tokens):
            token = self.tokens[index]
            if token == "{" and _opens_scope(head):
                scopes.append(head[-1] == "namespace")
                head = []
            elif token in OPEN:
                end = self._closing(index)
                # Nothing inside parentheses or braces is declared at namespace scope.
                head += [token, self.tokens[min(end, len(self.tokens) - 1)]]
                index = end
                if token == "{" and not _goes_on(head):
                    yield head, any(scopes)
                    head = []
            elif token == ";":
                if head:
                    yield [*head, ";"], any(scopes)
                head = []
            elif token == "}":
                if scopes:
                    scopes.pop()
                head = []
            else:
                head.append(token)
            index += 1
        if head:  # branches of a condition may each have a brace of one pair
            yield [*head, ";"], any(scopes)

    def _closing(self, index: int) -> int:
        depth = 0
        for at in range(index, len(self.tokens)):
            depth += (self.tokens[at] in OPEN) - (self.tokens[at] in CLOSE)
            if not depth:
                return at
        return len(self.tokens)

    @cached_property
    def names(self) -> Names:
        local, shared, meanings = set[str](), set[str](), dict(self.macros)
        for head, unnamed in self.declarations():
            if head[0] in ("using", "typedef", "namespace"):
                meanings |= dict.fromkeys(declared(head), " ".join(head))
            else:
                (local if unnamed or "static" in head else shared).update(declared(head))
        return Names(frozenset(local), frozenset(shared), meanings, self.used)


def _opens_scope(head: list[str]) -> bool:
    return ("namespace" in head and "=" not in head) or head == ["extern"]


def _goes_on(head: list[str]) -> bool:
    """Whether more of a declaration follows its braces: `struct {} x;`, `int x{};`."""
    bare = list(_without_arguments(head))
    return "=" in bare or "(" not in bare


def declared(head: list[str]) -> Iterator[str]:
    """The names that a declaration brings into its namespace, and at times another."""
    head = list(_without_arguments(head))
    if head[:1] == ["using"] and "=" not in head:
        return  # what it names is the same thing in every file
    for before, token, after in zip(["", *head], head, [*head[1:], ""], strict=False):
        if before in QUALIFIED and after == "(":
            return  # a member, declared in its class; its initializers follow
        if not NAME.fullmatch(token) or token in WORDS | TYPES or before in QUALIFIED:
            continue
        if before in TYPES and after in (":", "{", ";", "final"):
            yield token
            return
        if after == "(" and MACRO.fullmatch(token):
            continue
        if after in ("(", "=", "{", "[", ";", ","):
            yield token
        if after in ("(", "="):
            return


def _without_arguments(head: list[str]) -> Iterator[str]:
    """Without what stands in angle brackets, and without macros between `class` and its name."""
    depth = 0
    for at, token in enumerate(head):
        if token == "<" and head[at - 1] != "operator":
            depth += 1
        elif token == ">" and depth:
            depth -= 1
        elif not depth and not (at and head[at - 1] in TYPES and MACRO.fullmatch(token)):
            yield token


@dataclass(frozen=True)
class Headers:
    """What a tree's headers say, which is the same thing in every file."""

    mentioned: frozenset[str]
    aliases: frozenset[str]
    """Of namespaces, as Reader spells them."""

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Headers:
        mentioned, aliases = set[str](), set[str]()
        for path in paths:
            text = NOISE.sub(" ", path.read_text(encoding="utf-8", errors="replace"))
            mentioned.update(NAME.findall(text))
            aliases.update(" ".join(TOKEN.findall(found)) for found in ALIAS.findall(text))
        return cls(frozenset(mentioned), frozenset(aliases))

    def disturbs(self, first: Names, second: Names) -> frozenset[str]:
        """The names of `first` that `second`, compiled after it as one, may take for its own."""
        other = {
            name
            for name, meaning in first.meanings.items()
            if meaning not in self.aliases and second.meanings.get(name) != meaning
        }
        return (first.local | (first.shared - self.mentioned) | other) & second.used
