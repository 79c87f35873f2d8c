"""Refuses derivative formulas that cannot work, by the YAML's text and upstream's headers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import DerivativeError, ForkError, NeedsSourceLaneError
from .load import Additions
from .yaml_file import Entry, same_schema, words

FROM_SOURCE = "scripts/build_torch.sh --from-source"
# Keys of a derivatives.yaml entry that are no argument names.
FIELD_NAMES = frozenset({"name", "dispatch", "output_differentiability"})
# Formulas that are words of torchgen's own.
SPECIAL = frozenset({"auto_linear", "auto_element_wise", "non_differentiable"})
# Dispatch keys of kernels that are made of other operators, which autograd sees instead.
_IMPLICIT = frozenset({"CompositeImplicitAutograd", "CompositeImplicitAutogradNestedTensor"})
# Names that a generated node, or its function, has for something of its own.
_OF_NODES = """
grad grads name gen lock args saved packed_args grad_inputs grad_result any_grad_defined next_edges
retain_variables variable_list task_should_compute_output copy_range IndexRangeGenerator
"""
_CLOSED = {"(": ")", "[": "]", "{": "}"}
_NEAR_SPECIAL = re.compile(r"(?i)(not|non|no|un)[_ -]?differentiable")
_STRING = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'')
# A word that no qualifier and no object precedes: x of `x`, `x(...)`, not of `a.x`, `a->x`, `a::x`.
_WORD = re.compile(r"(?<![\w.])(?<!->)(?<!::)[A-Za-z_]\w*(?!\w|\s*::)")
_CALL = re.compile(r"(?<![\w.])(?<!->)(?<!::)(?:details::)?([A-Za-z_]\w*)(?=\s*\()")
_PYTHON = re.compile(r"\*\*|\btorch\.")
_METHOD = re.compile(r"(?:\.|->)\s*([A-Za-z_]\w*)(?=\s*\()")
# A formula that declares names of its own: not every word of it can be looked up.
_DECLARES = re.compile(r"\bauto\b|\[[&=]|[{;]")


def objections(
    entry: Entry, additions: Additions, known: dict[str, str], version: str
) -> Iterator[ForkError]:
    """What is wrong with one entry of derivatives_additions.yaml; known: upstream's schemas."""
    declared = additions.native_entry(entry.name)
    if declared is None and entry.name in known:
        yield NeedsSourceLaneError(
            f"the formula for '{entry.name}' would change an operator of torch {version}",
            where=entry.where(),
            why="its autograd node is compiled into libtorch",
            next=f"build it from source: {FROM_SOURCE}",
        )
    elif declared is None:
        yield DerivativeError(
            f"a formula for '{entry.name}', which is declared nowhere",
            where=entry.where(),
            why=f"{additions.native.path.name} has no such operator",
            next="declare it there, or correct the name (overload included)",
        )
    elif not same_schema(declared.key, entry.key):
        yield DerivativeError(
            f"the formula for '{entry.name}' repeats its schema differently",
            where=entry.where(),
            why=f"declared: {declared.key}\nhere:     {entry.key}\n(declared in "
            f"{declared.where()})",
            next="copy the schema from the declaration; argument names must match exactly",
        )
    else:
        yield from _unknown_keys(entry)
        yield from _unread(entry)
        yield from _of_composite(entry, declared)
        for key, formula in formulas_of(entry):
            yield from _wrong_words(entry, key, formula)
            yield from _wrong_form(entry, key, formula)


def formulas_of(entry: Entry) -> Iterator[tuple[str, str]]:
    """The formulas of an entry by their keys ('self', 'result'), those by dispatch key too."""
    yield from ((key, value) for key, value in _values_of(entry) if isinstance(value, str))


def _values_of(entry: Entry) -> Iterator[tuple[str, object]]:
    dispatch = entry.fields.get("dispatch")
    groups = list(dispatch.values()) if isinstance(dispatch, dict) else []
    for fields in [entry.fields, *(group for group in groups if isinstance(group, dict))]:
        yield from ((key, value) for key, value in fields.items() if key not in FIELD_NAMES)


def _unknown_keys(entry: Entry) -> Iterator[DerivativeError]:
    results, named = entry.results
    arguments = entry.arguments
    for key in entry.fields:
        for name in words(key):
            if key in FIELD_NAMES or name in arguments or name in results:
                continue
            yield DerivativeError(
                f"the formula for '{entry.name}' names '{name}', which is no argument of it"
                + (" and no result" if named else ""),
                where=entry.where(key),
                why=f"its schema: {entry.key}",
                next=f"formulas are for arguments ({', '.join(arguments) or 'none'}), "
                f"forward ones for results ({', '.join(results) or 'none'})",
            )


def _unread(entry: Entry) -> Iterator[DerivativeError]:
    """Formulas that YAML reads as no text, or that the generator does not look at."""
    for key, value in _values_of(entry):
        if not isinstance(value, str):
            yield DerivativeError(
                f"the formula of '{entry.name}' for '{key}' is no text",
                where=entry.where(key),
                why="YAML reads " + ("nothing" if value is None else f"{value!r:.60}"),
                next="write a C++ expression, in quotes if need be; an argument without a "
                "gradient is non_differentiable",
            )
    for key in entry.fields if "dispatch" in entry.fields else ():
        if key not in FIELD_NAMES:
            yield DerivativeError(
                f"the formula of '{entry.name}' for '{key}' stands beside 'dispatch'",
                where=entry.where(key),
                why="the generator would silently read those below 'dispatch' alone",
                next="move it there, below 'Default:'",
            )


def _of_composite(entry: Entry, declared: Entry) -> Iterator[DerivativeError]:
    """Autograd never gets to see a CompositeImplicitAutograd operator, so no formula would run."""
    if declared.structured or declared.kernels.keys() - _IMPLICIT:
        return
    if any(key not in FIELD_NAMES for key in entry.fields):
        yield DerivativeError(
            f"a formula for '{entry.name}', which is made of operators that have their own",
            where=entry.where(),
            why=f"{declared.where()} has no 'dispatch:' (or only CompositeImplicitAutograd), so "
            "autograd sees the operators inside",
            next="delete the formula, or give the operator a 'dispatch:' such as "
            "CompositeExplicitAutograd",
        )


def _wrong_words(entry: Entry, key: str, formula: str) -> Iterator[DerivativeError]:
    """Words that mean something in every formula, and not what they are used for in this one."""
    used = set(_words(formula))
    results, named = entry.results
    arguments = entry.arguments
    if _NEAR_SPECIAL.fullmatch(formula.strip()) and formula.strip() not in SPECIAL:
        yield DerivativeError(
            f"'{formula.strip()}' of '{entry.name}' is no formula",
            where=entry.where(key),
            next="write non_differentiable",
        )
    allowed = {*results, *arguments}
    for word in sorted(used - allowed):
        if re.fullmatch(r"result\d*", word):
            yield DerivativeError(
                f"the formula for '{entry.name}' uses '{word}', which is no result of it",
                where=entry.where(key),
                why=f"its results are {'named ' if named else ''}{', '.join(results) or 'none'}",
                next="use these names",
            )
    forward = not set(words(key)) & set(arguments)
    misplaced = {"grad", "grads", "grad_input_mask", "non_differentiable"} if forward else {
        "auto_linear", "auto_element_wise",
        *(f"{value}{end}" for value in allowed for end in ("_t", "_p")),
    }  # fmt: skip
    for word in sorted(used & misplaced - allowed) if not _DECLARES.search(formula) else ():
        yield DerivativeError(
            f"the formula of '{entry.name}' for '{key}' uses '{word}'",
            where=entry.where(key),
            why=f"'{key}' is a result: its formula is a forward one, made of the tangents of "
            "arguments (x_t) and of their values (x_p)"
            if forward
            else f"'{key}' is an argument: its formula is a backward one, made of grad, arguments "
            "and results",
            next="correct it; output_differentiability says which results have no gradient"
            if word == "non_differentiable"
            else "correct it, or move it to the key that it is meant for",
        )
    # What a formula uses becomes a member of the generated node and a variable of its function.
    taken = {*_OF_NODES.split(), *(f"{argument}_ix" for argument in arguments)}
    for word in sorted(taken & used & set(arguments)):
        yield DerivativeError(
            f"'{entry.name}' has an argument '{word}', which its formula cannot use",
            where=entry.where(key),
            why=f"in a formula '{word}' is something of the autograd node's own",
            next=f"call the argument {word}_output or x{word}, here and in the declaration",
        )


def _wrong_form(entry: Entry, key: str, formula: str) -> Iterator[DerivativeError]:
    """A formula that no compiler would take, or that nothing would ever call."""
    open_ = ""
    for bracket in re.findall(r"[][(){}]", _STRING.sub("", formula)):
        if bracket in _CLOSED:
            open_ += _CLOSED[bracket]
        elif open_[-1:] == bracket:
            open_ = open_[:-1]
        else:
            open_ = bracket
            break
    ending = formula.strip()[-1:]
    python = _PYTHON.search(_STRING.sub("", formula))
    if open_ or python or ending in "+-*/%=<>&|?:,.;":
        yield DerivativeError(
            f"the formula of '{entry.name}' for '{key}' is no C++ expression",
            where=entry.where(key),
            why=f"its brackets do not match: '{open_[-1:]}'"
            if open_
            else f"'{python[0]}' is Python's: write at::pow(x, y), at::mul(x, y)"
            if python
            else f"it ends with '{ending}'"
            if ending
            else "it is empty",
            next="correct it; an argument without a gradient is non_differentiable",
        )
    discrete = [a for a in words(key) if "Tensor" not in entry.types.get(a, "Tensor")]
    if discrete and formula.strip() not in SPECIAL:
        yield DerivativeError(
            f"'{entry.name}' has a formula for '{discrete[0]}', which can have no gradient",
            where=entry.where(key),
            why=f"it is of type {entry.types[discrete[0]]}, and gradients are tensors",
            next="delete the formula, or make the argument a Tensor",
        )


def _words(formula: str) -> list[str]:
    return _WORD.findall(_STRING.sub('""', formula))


@dataclass(frozen=True)
class Scope:
    """What formulas can name on one base.

    words: of upstream's own formulas, its operators and the header of its helpers.
    manual: the text of that header, FunctionsManual.h.
    provided: helpers that the header declares and a graft brings.
    elsewhere: which of some words any other header of the base has; slow.
    exported: which of some helpers of FunctionsManual.h a library exports; slow.
    """

    words: frozenset[str]
    operators: frozenset[str]
    manual: str
    provided: frozenset[str]
    elsewhere: Callable[[Collection[str]], set[str]]
    exported: Callable[[Collection[str]], set[str]]


def scope_objections(additions: Additions, scope: Scope) -> list[DerivativeError]:
    """Formulas that use a name that exists nowhere, or call a helper that no library exports."""
    own, operators = _own_words(additions), scope.operators
    callable_ = own | operators | scope.provided
    unknown: dict[tuple[str, str], Entry] = {}  # (word, key) -> entry
    helpers: dict[tuple[str, str], Entry] = {}
    undefined: dict[tuple[str, str], Entry] = {}
    declared, defined = _helpers(additions)
    for entry in additions.derivatives.entries:
        local = _local_words(entry)
        for key, formula in formulas_of(entry):
            if formula.strip() in SPECIAL or _NEAR_SPECIAL.fullmatch(formula.strip()):
                continue
            for name in _CALL.findall(_STRING.sub('""', formula)):
                if declared_without_body(declared, name) and name not in defined:
                    undefined[name, key] = entry
                if not {name, _operator(name)} & callable_ and (
                    declared_without_body(scope.manual, name)
                ):
                    helpers[name, key] = entry
            if not _DECLARES.search(formula):
                for word in [*_words(formula), *_METHOD.findall(_STRING.sub('""', formula))]:
                    if not {word, _operator(word)} & (own | local | scope.words):
                        unknown[word, key] = entry
    found = scope.elsewhere({word for word, _ in unknown}) if unknown else set()
    called = {name for name, _ in (*helpers, *undefined)}
    exported = scope.exported(called) | scope.provided if called else set()
    errors = [_unknown(entry, key, w) for (w, key), entry in unknown.items() if w not in found]
    hidden = [(n, key, entry) for (n, key), entry in helpers.items() if n not in exported]
    errors += [_undefined(e, key, n) for (n, key), e in undefined.items() if n not in exported]
    return errors + [_hidden(entry, key, name) for name, key, entry in hidden]


def _own_words(additions: Additions) -> set[str]:
    """The names that the additions' headers and declarations bring.

    Generated code includes *FunctionsManual.h, which may include others.
    """
    own = {name.partition(".")[0] for name in additions.native.functions}
    for header in additions.headers if additions.manual_headers else ():
        own |= set(re.findall(r"\w+", header.read_text(encoding="utf-8", errors="replace")))
    return own


def _helpers(additions: Additions) -> tuple[str, frozenset[str]]:
    """The text of the headers of helpers, and the words of the files that may define them."""
    declarations = others = ""
    for path in additions.sources:
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.name.endswith("FunctionsManual.h"):
            declarations += text
        else:
            others += text
    pastes_names = "##" in others  # and so may define any of those declared
    return declarations, words_in(declarations if pastes_names else others)


def _operator(word: str) -> str:
    """The operator that a C++ function of namespace at calls, by the generator's suffixes."""
    return re.sub(r"(_symint)?(_outf?)?$", "", word)


def _local_words(entry: Entry) -> set[str]:
    """What torchgen gives a formula: arguments, results, gradients, tangents and primals."""
    values = {*entry.arguments, *entry.results[0]}
    tangents = {f"{prefix}{v}{end}" for v in values for prefix in ("", "original_")
                for end in ("_t", "_p")}  # fmt: skip
    return values | tangents | {f"grad_{value}" for value in values} | {"grad", "grads"}


def after_parameters(code: str, start: int) -> tuple[int, str]:
    """Where the parenthesis that is open at `start` is closed, and what follows: '{', ';', …"""
    depth, end = 1, start
    while depth and end < len(code):
        depth += {"(": 1, ")": -1}.get(code[end], 0)
        end += 1
    return end, re.sub(r"^(\s|const\b|noexcept\b)+", "", code[end : end + 40])[:1]


def declared_without_body(header: str, name: str) -> bool:
    """Whether the text of a header declares a function and has no body for it."""
    declared = False
    for match in re.finditer(rf"\b{re.escape(name)}\s*\(", header):
        _, follows = after_parameters(header, match.end())
        if follows == "{":
            return False
        declared = declared or follows == ";"
    return declared


def _unknown(entry: Entry, key: str, word: str) -> DerivativeError:
    return DerivativeError(
        f"the formula for '{entry.name}' uses '{word}', which is nothing that formulas know",
        where=entry.where(key),
        why="it is no argument, result or operator, and no header of PyTorch's or of the "
        "additions has it",
        next="correct the name, or declare the helper in a header of yours named "
        "*FunctionsManual.h",
    )


def _undefined(entry: Entry, key: str, name: str) -> DerivativeError:
    return DerivativeError(
        f"the formula for '{entry.name}' calls {name}, which is declared and defined nowhere",
        where=entry.where(key),
        why="a *FunctionsManual.h declares it, and no source has the word",
        next="define it in aten_src/native/*FunctionsManual.cpp, in the namespace of its header",
    )


def _hidden(entry: Entry, key: str, name: str) -> DerivativeError:
    return DerivativeError(
        f"the formula for '{entry.name}' calls {name}, which libtorch does not export",
        where=entry.where(key),
        why="upstream's FunctionsManual.h declares it for libtorch's own formulas alone",
        next="write a helper of your own in aten_src/native/*FunctionsManual.{h,cpp}, call "
        f"operators instead, or build from source: {FROM_SOURCE}",
        kind="symbol hidden",
    )


def words_in(text: str) -> frozenset[str]:
    """Every identifier of a text."""
    return frozenset(re.findall(r"[A-Za-z_]\w*", text))


def headers_with(root: Path, folders: Collection[str], wanted: Collection[str]) -> set[str]:
    """Which of the wanted words a header in the folders (not below them) or in c10/ has.

    Every word counts as found where root has no headers.
    """
    if not (root / "ATen").is_dir():
        return set(wanted)
    paths = [path for folder in folders for path in (root / folder).glob("*.h")]
    found: set[str] = set()
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(wanted)))})\b")
    for path in [*paths, *(root / "c10").rglob("*.h")]:
        found |= set(pattern.findall(path.read_text(encoding="utf-8", errors="replace")))
    return found
