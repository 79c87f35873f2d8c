"""What a compiler complains of in generated code, traced to the derivative formula it came from."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..additions.load import Additions
from ..additions.yaml_file import Entry

# The autograd node or the function of VariableType in which GCC says that it is.
_NODE = re.compile(r"\b(\w+)Backward\d+(?:::|_apply_functional)")
_FUNCTION = re.compile(r"VariableType::(?:\{anonymous\}|\(anonymous namespace\))::(\w+)\(")
_QUOTED = re.compile(r"['`‘]([^'’]+)['’]")


def formula_of(before: str, error: str, additions: Additions) -> str:
    """'file:line' of the formula that an error in generated code comes from, '' where unknown.

    before: what the compiler said before the error, which names the function it is in.
    """
    contexts = [(m.end(), m[1]) for p in (_NODE, _FUNCTION) for m in p.finditer(before + error)]
    for _, name in sorted(contexts, reverse=True):
        for entry in additions.derivatives.entries:
            if _plain(entry.name.partition(".")[0]) == _plain(name):
                return entry.where(_field(entry, error))
    return ""


def _plain(name: str) -> str:
    """A name without the case and the underscores by which node and operator differ."""
    return name.replace("_", "").lower()


def _field(entry: Entry, error: str) -> str:
    """The field whose formula has the words that the error quotes; '' for none of them."""
    quoted = set(_words(error))
    for field, formula in entry.fields.items():
        if field != "name" and isinstance(formula, str) and quoted & set(_names(formula)):
            return field
    return ""


def _words(error: str) -> Iterator[str]:
    first = error.partition("\n")[0]
    return (word for quote in _QUOTED.findall(first) for word in _names(quote))


def _names(text: str) -> list[str]:
    return [name for name in re.findall(r"[A-Za-z_]\w*", text) if name not in _COMMON]


# Words that stand in most formulas and tell none from another.
_COMMON = frozenset({"grad", "grads", "self", "at", "const", "Tensor", "result"})
