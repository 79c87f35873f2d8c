"""Refuses additions that the base cannot take, before the code generator or a compiler runs.

The generator's own parser checks what a schema may say; what is checked here it does not, or only
in a full run, or in words that do not help whoever wrote the additions.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator

from ..errors import (
    AdditionsError,
    CollisionError,
    ForkError,
    KernelError,
    NeedsSourceLaneError,
    listed,
)
from ..upstream.base import Upstream
from ..upstream.python_names import AT, TENSOR
from . import fake_impls, formulas
from .formulas import FROM_SOURCE
from .load import Additions
from .yaml_file import Entry, same_schema, words

_CPP_KEYWORDS = """
alignas alignof and_eq asm auto bitand bitor bool case catch char compl concept const constexpr
const_cast decltype default delete do double dynamic_cast else enum explicit export extern float
for friend goto if inline int long mutable namespace new noexcept nullptr operator or_eq private
protected public register reinterpret_cast requires return short signed sizeof static
static_assert static_cast struct switch template this throw try typedef typeid typename union
unsigned using virtual void volatile while xor xor_eq
"""
CPP_KEYWORDS = frozenset(_CPP_KEYWORDS.split())
_MACROS = frozenset({"NULL", "EOF", "errno", "stdin", "stdout", "stderr", "assert", "NAN"})
_CONSTANTS = frozenset({"None", "True", "False"})
# Places with names of their own that no operator's python_module is.
_PLACES = frozenset({"torch", TENSOR, AT})
# What the functions that torchgen writes around a kernel call their own variables.
_LOCALS = """
op ks dispatchKeySet guard _any_requires_grad grad_fn _tmp node tracer_state op_name results
common_device device_guard maybe_layer cur_level batch_rule batch_rule_t tmp_output Tensor unpack
no_gil SavedVariable compute_requires_grad collect_next_edges set_history
"""


def objections(additions: Additions, upstream: Upstream, version: str) -> Iterator[ForkError]:
    """Every objection to the declarations, to the formulas, and to the sources."""
    known = upstream.by_name()
    schemas = [*known.values(), *(entry.key for entry in additions.native.entries)]
    for entry in additions.native.entries:
        yield from _of_declaration(entry, known, schemas, upstream, version)
    for entry in additions.derivatives.entries:
        yield from formulas.objections(entry, additions, known, version)
    for entry in additions.deprecated.entries:
        yield from _deprecation(entry)
    yield from _registrations_of_nothing(additions, known)
    yield from fake_impls.objections(
        additions.root, additions.fake_impls, additions.native.functions, known
    )


def notes(additions: Additions) -> Iterator[str]:
    """What works and costs more than it need, for the user to know."""
    without = []
    for formula in additions.derivatives.entries:
        entry = additions.native_entry(formula.name)
        if entry is None or entry.structured or not entry.kernels:
            continue
        shown = any(key == "Meta" or key.startswith("Composite") for key in entry.kernels)
        if not shown and not fake_impls.has_rule(additions.fake_impls, entry.name):
            without.append(f"{entry.where('dispatch')}: '{entry.name}'")
    if without:
        yield (
            "a derivative and no Meta kernel: torch.compile and export learn the result's shape by "
            f"running the kernel on zeros, or fail\n{listed(without)}\n  declare 'Meta: ' with a "
            "kernel that allocates the result alone, or make the operator structured, whose meta "
            "function serves every device; where the shape depends on data, write a rule in "
            f"{fake_impls.FILE}"
        )


def _of_declaration(
    entry: Entry, known: dict[str, str], schemas: list[str], upstream: Upstream, version: str
) -> Iterator[ForkError]:
    unusable = list(_unusable_names(entry))
    unusable += _names_of_atens_own(entry, upstream)
    if unusable:
        yield from unusable
        return
    if entry.name in known:
        yield _existing(entry, known[entry.name], version)
    else:
        yield from _overwritten_attributes(entry, upstream, version)
    yield from _ambiguous(entry, schemas)
    yield from _tags(entry, upstream, version)
    yield from _keys(entry, upstream, version)
    yield from _structured(entry)
    yield from _module(entry, upstream)
    yield from _method_without_self(entry)
    yield from _arguments(entry)
    yield from _defaults(entry, upstream)


def _unusable_names(entry: Entry) -> Iterator[ForkError]:
    """Names that torchgen accepts and that Python or C++ cannot have."""
    name, _, overload = entry.name.partition(".")
    if "::" in name:
        yield AdditionsError(
            f"'{entry.name}' names a namespace",
            where=entry.where(),
            why="native functions are in namespace aten, which is never written",
            next=f"write it as {name.rpartition('::')[2]}(...)",
        )
        return
    arguments = [a for a in entry.arguments if a != "from"]  # torchgen renames it
    results = entry.results[0] if entry.results[1] else []
    named = [(name, "operator"), *((a, "argument") for a in arguments),
             *((r, "result") for r in results if r not in arguments)]  # fmt: skip
    for word, what in named:
        if not word.isascii():
            yield AdditionsError(
                f"the {what} '{word}' of '{entry.name}' is not in ASCII",
                where=entry.where(),
                why="TorchScript, which reads each schema when torch is imported, knows no other "
                "letters",
                next="call it otherwise",
            )
        kinds = (("keyword of Python", keyword.kwlist), ("keyword of C++", CPP_KEYWORDS),
                 ("macro of C's headers", _MACROS))  # fmt: skip
        languages = [kind for kind, words in kinds if word in words]
        if languages:
            yield AdditionsError(
                f"the {what} '{word}' of '{entry.name}' is a {' and a '.join(languages)}",
                where=entry.where(),
                next=f"call it otherwise, {word}_like or x{word}",
            )
    for word in arguments:
        result = word == "result" and f"!) {word}" not in entry.key
        unpacked = word.endswith("_") and word[:-1] in arguments  # unpack(self) is self_
        if result or unpacked or word in _LOCALS.split():
            yield AdditionsError(
                f"the argument '{word}' of '{entry.name}' has the name of a variable",
                where=entry.where(),
                why="the C++ that PyTorch's generator writes for the operator has one called so",
                next=f"call it otherwise, {word.strip('_')}_like or x{word.rstrip('_')}",
            )
    if name[:1].isupper():
        yield CollisionError(
            f"'{entry.name}' begins with a capital letter",
            where=entry.where(),
            why="torch's capitalised names are classes; some of them (torch.Storage) are "
            "registered from C++ and would be overwritten",
            next=f"call it {name.lower()}",
            kind="name taken upstream",
        )
    if overload == "default":
        yield AdditionsError(
            f"'{entry.name}' has the overload name 'default'",
            where=entry.where(),
            why="torch.ops calls the overload without a name so",
            next="choose another overload name",
        )


def _names_of_atens_own(entry: Entry, upstream: Upstream) -> Iterator[CollisionError]:
    """Names that a namespace has, or a function that is no operator."""
    name = entry.name.partition(".")[0]
    taken = {"at", "c10", "std", "torch"}
    if "function" in entry.variants and name not in upstream.operators:
        taken |= upstream.attributes.get("at", frozenset())
        taken |= {key.lower() for key in upstream.dispatch_keys}  # at::cpu has CPU's functions
    if name in taken:
        yield CollisionError(
            f"'{entry.name}' has the name of a namespace or of a helper function of ATen's",
            where=entry.where(),
            why=f"at::{name} and at::_ops::{name}, which the generated C++ has for the operator, "
            "would clash with it or hide it",
            next=f"call it otherwise, {name.lstrip('_')}_ext",
            kind="name taken upstream",
        )


def _overwritten_attributes(
    entry: Entry, upstream: Upstream, version: str
) -> Iterator[CollisionError]:
    """A binding silently takes the place of a Python attribute that has its name."""
    name = entry.name.partition(".")[0]
    if name in upstream.operators:
        return  # a new overload: what upstream has under the name, it has already
    module = entry.fields.get("python_module")
    homes = []
    if module is None:
        homes += [("torch", name, "torch")] if "function" in entry.variants else []
        homes += [("Tensor", name, "torch.Tensor")] if "method" in entry.variants else []
    elif not name.startswith("_"):
        shown = "torch.nn.functional" if module == "nn" else f"torch.{module}"
        homes.append((str(module), name.removeprefix(f"{module}_"), shown))
    for home, attribute, shown in homes:
        if attribute in upstream.attributes.get(home, ()):
            yield CollisionError(
                f"'{entry.name}' has the name of {shown}.{attribute} in torch {version}",
                where=entry.where(),
                why=f"{shown}.{attribute} is no operator; the added one would take its place",
                next=f"call it otherwise, {name}_ext",
                kind="name taken upstream",
            )


_REGISTRATION = re.compile(
    r"\bTORCH_LIBRARY_IMPL\s*\(\s*aten\s*,.*?^\s*\}", re.DOTALL | re.MULTILINE
)
_IMPL = re.compile(r"\.impl\s*\(\s*(?:TORCH_SELECTIVE_NAME\s*\(\s*)?\"(?:aten::)?([\w.]+)\"")


def _registrations_of_nothing(additions: Additions, known: dict[str, str]) -> Iterator[KernelError]:
    """The dispatcher keeps a kernel for an operator that never comes, and says nothing."""
    ours = additions.native.functions
    for path in additions.sources:
        text = path.read_text(encoding="utf-8", errors="replace")
        for block in _REGISTRATION.finditer(text):
            for call in _IMPL.finditer(block[0]):
                name = call[1]
                if name not in known and name not in ours:
                    yield KernelError(
                        f"a kernel is registered for 'aten::{name}', which is declared nowhere",
                        where=f"{path}:{text.count(chr(10), 0, block.start() + call.start()) + 1}",
                        why=f"{additions.native.path.name} has no such operator, nor has upstream",
                        next="declare the operator, or correct the name (overload included)",
                    )


def _existing(entry: Entry, theirs: str, version: str) -> ForkError:
    if same_schema(theirs, entry.key):
        return CollisionError(
            f"'{entry.name}' exists in torch {version} already, with this very schema",
            where=entry.where(),
            why="either it landed upstream, or the entry edits an operator of upstream's, which a "
            "wheel cannot take",
            next='limit it to the releases before, with torch: "<…" beside func; delete it (and '
            "its kernels) if upstream's serves you; rename yours; or build the edited operator "
            f"from source: {FROM_SOURCE}",
            kind="landed upstream",
        )
    return NeedsSourceLaneError(
        f"'{entry.name}' would change an operator of torch {version}",
        where=entry.where(),
        why=f"upstream declares {theirs}\nlibtorch has it compiled in, so a wheel cannot take "
        "the change",
        next="rename yours, give it an overload name of its own "
        f"({entry.name.split('.')[0]}.mine), or change upstream's: {FROM_SOURCE}",
        kind="name taken upstream",
    )


def _types(schema: str) -> tuple[str, list[str]]:
    """An operator's name without its overload, and the types of all its arguments."""
    name, _, rest = schema.partition("(")
    text = re.sub(r"\(\w[^()]*\)", "", rest.rpartition("->")[0].strip().removesuffix(")"))
    arguments = re.split(r",\s*(?![^\[]*\])", text)
    return name.partition(".")[0], [a.split()[0] for a in arguments if a.strip() not in {"", "*"}]


def _ambiguous(entry: Entry, schemas: list[str]) -> Iterator[CollisionError]:
    """TorchScript would run the overload that it finds first, and say nothing."""
    name, types = _types(entry.key)
    for schema in schemas:
        if schema.startswith(name) and schema.partition("(")[0] != entry.name:
            if _types(schema) != (name, types):
                continue
            yield CollisionError(
                f"'{entry.name}' takes arguments of the same types as '{schema.partition('(')[0]}'",
                where=entry.where(),
                why="TorchScript tells overloads apart by the types of all arguments, out= "
                f"included, and may call the other one:\n{schema}",
                next="change a type or the number of arguments, or choose another name",
                kind="ambiguous overload",
            )


def _tags(entry: Entry, upstream: Upstream, version: str) -> Iterator[NeedsSourceLaneError]:
    for tag in words(entry.fields.get("tags", [])):
        if tag not in upstream.tags:
            yield NeedsSourceLaneError(
                f"'{entry.name}' uses the tag '{tag}', which torch {version} does not have",
                where=entry.where("tags"),
                why="tags are an enumeration that is compiled into libtorch; it has "
                + ", ".join(sorted(upstream.tags)),
                next=f"use one of these, or add the tag to tags.yaml by a patch and {FROM_SOURCE}",
                kind="tag gone",
            )


def _keys(entry: Entry, upstream: Upstream, version: str) -> Iterator[ForkError]:
    needed = entry.fields.get("structured") and "!)" in entry.parameters
    dispatch = entry.fields.get("dispatch", {} if needed else {"": ""})
    if not isinstance(dispatch, dict) or not dispatch:
        yield AdditionsError(
            f"'dispatch' of '{entry.name}' is not a mapping that names a kernel",
            where=entry.where("dispatch"),
            next="write '  dispatch:' and below it '    CPU, CUDA: kernel_name'",
        )
        return
    keys = [key for group in dispatch for key in words(group)]
    for key in sorted({key for key in keys if keys.count(key) > 1}):
        yield AdditionsError(
            f"'dispatch' of '{entry.name}' has the key {key} twice",
            where=entry.where("dispatch"),
            why="the generator would silently take the last of the kernels",
            next="delete one of the two",
        )
    for key in entry.kernels:
        if key not in upstream.dispatch_keys:
            yield NeedsSourceLaneError(
                f"'{entry.name}' names the dispatch key '{key}', which no operator of torch "
                f"{version} can have a kernel for",
                where=entry.where("dispatch"),
                why="dispatch keys are an enumeration that is compiled into libtorch",
                next="correct the key (CPU, CUDA, Meta, CompositeExplicitAutograd, ...); a new one "
                f"needs a patch and {FROM_SOURCE}",
                kind="dispatch key gone",
            )


def _structured(entry: Entry) -> Iterator[AdditionsError]:
    """Names that the generator hands on, or leaves out, without a look."""
    parent = entry.fields.get("structured_inherits", "TensorIteratorBase")
    if parent != "TensorIteratorBase":
        yield AdditionsError(
            f"'{entry.name}' inherits '{parent}'",
            where=entry.where("structured_inherits"),
            why="the generated header includes ATen/TensorIterator.h and no other class's header",
            next="write TensorIteratorBase, or delete the line",
        )
    lines = entry.fields.get("precomputed")
    for line in lines if isinstance(lines, list) else ():
        name, arrow, _ = str(line).partition(" -> ")
        if arrow and name.strip() not in entry.arguments:
            yield AdditionsError(
                f"'precomputed' of '{entry.name}' replaces '{name}', which is no argument of it",
                where=entry.where("precomputed"),
                why=f"its arguments: {', '.join(entry.arguments)}",
                next="correct the name; without '->' a line declares more parameters",
            )


def _module(entry: Entry, upstream: Upstream) -> Iterator[AdditionsError]:
    module = entry.fields.get("python_module")
    modules = sorted(upstream.attributes.keys() - _PLACES)
    if module is not None and module not in modules:
        yield AdditionsError(
            f"'{entry.name}' names the Python module '{module}', for which upstream's generator "
            "makes no bindings",
            where=entry.where("python_module"),
            why=f"it makes them for {', '.join(modules)}",
            next="correct the name, or delete the line: the operator is then torch."
            + entry.name.partition(".")[0],
        )


_QUOTED = r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'"
# As torchgen splits a schema: '1,5' is one default.
_DEFAULT = re.compile(rf"(\w+)=({_QUOTED}|[^=]*?)(?=, (?![^\[]*\])|$)")
_VALUE = re.compile(rf"[A-Za-z_]\w*|-?\d+(\.\d*)?([eE][-+]?\d+)?|\[[\w,.-]*\]|{_QUOTED}")
# Whether it is mutable, its name, and whether it has a default.
_ARGUMENT = re.compile(r"(?:^|, )[A-Z_a-z]\w*(\(\w+!\))?[^,= ]* (\w+)(=?)")
_WORD_AS_DEFAULT = re.compile(r"\b(\w+)(?:\[\d*\])?\??\s+(\w+)=([A-Za-z_]\w*)(?=\s*[,)])")


def _arguments(entry: Entry) -> Iterator[AdditionsError]:
    """What neither C++ nor Python takes, and torchgen does."""
    star = re.search(r"(?:^|, )\*, |$", entry.parameters)
    names: list[str] = []
    defaulted = ""
    for found in _ARGUMENT.finditer(entry.parameters):
        mutable, name, default = found.groups()
        default = default and name not in words(entry.fields.get("cpp_no_default_args", []))
        out = mutable and star and found.start() > star.start()  # C++ has these first
        if name in names:
            yield AdditionsError(
                f"two arguments of '{entry.name}' are called '{name}'",
                where=entry.where(),
                next="rename one of them",
            )
        elif defaulted and not default and not out:
            yield AdditionsError(
                f"'{name}' of '{entry.name}' has no default, and '{defaulted}' before it has one",
                where=entry.where(),
                why="C++ fills arguments from the left, those after '*' too",
                next=f"give it a default, or put it before '{defaulted}'",
            )
        names.append(name)
        defaulted = name if default else defaulted
    results, named = entry.results
    for name in sorted({name for name in results if named and results.count(name) > 1}):
        yield AdditionsError(
            f"two results of '{entry.name}' are called '{name}'",
            where=entry.where(),
            next="rename one of them",
        )


def _defaults(entry: Entry, upstream: Upstream) -> Iterator[AdditionsError]:
    """Words that torchgen hands on to C++ as they are: it translates those that upstream uses."""
    for name, value in _DEFAULT.findall(entry.parameters):
        if not _VALUE.fullmatch(value.strip()):
            yield AdditionsError(
                f"'{value.strip()}', the default of '{name}' in '{entry.name}', is no value",
                where=entry.where(),
                why="a default is a number (1, -0.5, 1e-5), a word, a list in brackets or a "
                "text in quotes",
                next="correct it; a comma and a blank are between arguments",
            )
    found = [one for one in _WORD_AS_DEFAULT.findall(entry.key) if one[2] not in _CONSTANTS]
    known = {
        (kind, word)
        for schema in (upstream.schemas if found else ())
        for kind, _, word in _WORD_AS_DEFAULT.findall(schema)
    }
    for kind, name, word in found:
        if (kind, word) not in known:
            words = sorted(w for k, w in known if k == kind)
            yield AdditionsError(
                f"'{word}', the default of '{name}' in '{entry.name}', has no translation to C++",
                where=entry.where(),
                why=f"of this type upstream's own functions have {', '.join(words) or 'None'}",
                next=f"write one of these, a text in quotes, or declare '{kind}? {name}=None'",
            )


def _deprecation(entry: Entry) -> Iterator[AdditionsError]:
    """The generator says what a deprecation lacks, and not which."""
    call = re.fullmatch(r"\w+\((.*)\)", str(entry.fields.get("aten", "")))
    unknown = [w for w in words(call[1]) if w not in {*entry.arguments, "1"}] if call else []
    if unknown or not call:
        yield AdditionsError(
            f"the deprecated '{entry.name}' calls "
            + (f"with '{unknown[0]}', which is no argument of it" if unknown else "nothing"),
            where=entry.where("aten"),
            why=f"its arguments: {', '.join(entry.arguments)}",
            next="write the call that it stands for, as in   aten: add(self, other, alpha)",
        )


def _method_without_self(entry: Entry) -> Iterator[AdditionsError]:
    self = re.search(r"\bTensor(\([^)]*\))? self\b", entry.parameters)
    if "method" in entry.variants and not self:
        yield AdditionsError(
            f"'{entry.name}' is declared as a method and has no argument 'Tensor self'",
            where=entry.where("variants"),
            why="a method's tensor is the argument of that name",
            next="name the argument self, or leave 'method' out of 'variants'",
        )
