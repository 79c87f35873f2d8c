"""The lists of operators that upstream keeps by hand: where each stands, and how it is extended.

What a list says about an added operator is in edits.list_entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from ..codegen import templates
from ..codegen.model import Manifest
from ..errors import ForkError, combined
from ..util.blocks import END_OF_FILE, Anchor, block, place, strip_blocks
from . import BuildMode, list_entries, stubs

Read = Callable[[str], str | None]
Render = Callable[[Manifest, str], list[str]]

AUTOGRAD = {"graft": "torchgen/packaged/autograd", "source": "tools/autograd"}
CSRC = {"graft": "torch/include/torch/csrc", "source": "torch/csrc"}
# python_module -> (file that holds its public names, the builtin module as that file calls it)
MODULES = {
    "nn": ("torch/nn/functional.py", "torch._C._nn"),
    "special": ("torch/special/__init__.py", "_special"),
    "linalg": ("torch/linalg/__init__.py", "_linalg"),
    "fft": ("torch/fft/__init__.py", "_fft"),
    "nested": ("torch/nested/__init__.py", "_nested"),
    "sparse": ("torch/sparse/__init__.py", "_sparse"),
}


@dataclass(frozen=True)
class ListEdit:
    """Lines put into a file beside a line of upstream's.

    pattern: of that line, or END_OF_FILE. purpose: names the list in errors.
    render: the lines, from the manifest and upstream's text of the file; none for no block.
    indent: of the lines, in columns.
    """

    path: str
    pattern: str
    purpose: str
    render: Render
    indent: int = 0
    place: Literal["before", "after"] = "after"
    comment: str = "#"


@dataclass(frozen=True)
class FileEdit:
    """What the list edits do to one file."""

    path: str
    text: str | None = None  # the new text; None where the file stays as it is
    error: ForkError | None = None  # why the file cannot be edited


def edit_files(
    read: Read,
    manifest: Manifest,
    mode: BuildMode,
    extra_headers: Sequence[str],
    fake_impls: str = "",
) -> list[FileEdit]:
    """Extend every list of a build mode; files without a list of theirs are not in the answer.

    read: a file's present text, or None where there is none. Blocks of an earlier run are taken
        out first, so the result depends on upstream's text and the manifest alone; a file that
        needs no block any more gets upstream's text again.
    mode: "graft" for a directory laid out as site-packages, "source" for a source tree.
    extra_headers: headers that generated autograd code needs, as an #include names them.
    fake_impls: the additions' rules for fake tensors.
    """
    return _edit(read, list_edits(mode, extra_headers, fake_impls), manifest)


def edit_lists(
    read: Read,
    manifest: Manifest,
    mode: BuildMode,
    extra_headers: Sequence[str],
    fake_impls: str = "",
) -> dict[str, str]:
    """The texts of the files that edit_files changes, by path. Raises all their errors as one."""
    return changed_texts(edit_files(read, manifest, mode, extra_headers, fake_impls))


def changed_texts(edits: Sequence[FileEdit]) -> dict[str, str]:
    """The new texts by path. Raises all their errors as one."""
    errors = [edit.error for edit in edits if edit.error is not None]
    if errors:
        raise combined(errors)
    return {edit.path: edit.text for edit in edits if edit.text is not None}


def edit_parser_lists(read: Read, schemas: Sequence[str]) -> dict[str, str]:
    """Extend the lists without which torchgen cannot parse the additions at all.

    schemas: the 'func' of every added entry. The files (of torchgen itself, at the same paths in
    both modes) end up as edit_files makes them.
    """
    return changed_texts(_edit(read, _parser_lists(schemas), Manifest()))


def edited_files(mode: BuildMode) -> tuple[str, ...]:
    """Every file that edit_files may change."""
    return tuple(dict.fromkeys(edit.path for edit in list_edits(mode, ())))


def parser_files() -> tuple[str, ...]:
    """Every file that edit_parser_lists may change."""
    return tuple(edit.path for edit in _parser_lists(None))


def _edit(read: Read, edits: Sequence[ListEdit], manifest: Manifest) -> list[FileEdit]:
    by_path: dict[str, list[ListEdit]] = {}
    for edit in edits:
        by_path.setdefault(edit.path, []).append(edit)
    return [_edit_file(path, read(path), by_path[path], manifest) for path in by_path]


def _edit_file(
    path: str, present: str | None, edits: Sequence[ListEdit], manifest: Manifest
) -> FileEdit:
    try:
        clean = None if present is None else strip_blocks(present, path)
        text = clean
        for edit in edits:
            lines = edit.render(manifest, clean or "")
            anchor = Anchor(edit.pattern, edit.place, f"for {edit.purpose}")
            if lines and text is None:
                raise anchor.error(path, "there is no such file")
            if lines and text is not None:
                text = place(text, anchor, block(lines, edit.comment, " " * edit.indent), path)
    except ForkError as error:
        return FileEdit(path, error=error)
    return FileEdit(path, None if text == present else text)


def _parser_lists(schemas: Sequence[str] | None) -> list[ListEdit]:
    """Lists that torchgen reads while it parses; schemas: as long as there is no manifest."""
    name = "FUNCTIONAL_OPS_THAT_CANNOT_GET_AN_OUT_VARIANT"
    render = partial(list_entries.without_out_variant, schemas)
    path = "torchgen/native_function_generation.py"
    return [ListEdit(path, rf"{name} = \[", name, render, indent=4)]


def list_edits(
    mode: BuildMode, extra_headers: Sequence[str], fake_impls: str = ""
) -> list[ListEdit]:
    """Every list of a build mode; those of one file in the order of their insertion."""
    autograd, csrc = AUTOGRAD[mode], CSRC[mode]
    edits = [
        *_parser_lists(None),
        # Lists that the autograd generator reads, and the header that its output includes.
        ListEdit(
            f"{autograd}/gen_inplace_or_view_type.py",
            r"VIEW_FUNCTIONS = \{", "VIEW_FUNCTIONS",
            list_entries.view_functions, indent=4,
        ),
        ListEdit(
            "torchgen/gen_functionalization_type.py",
            r"SINGLE_OUTPUT_VIEW_REPLAY: dict\[str, str\] = \{", "SINGLE_OUTPUT_VIEW_REPLAY",
            list_entries.whole_view_replay, indent=4,
        ),
        ListEdit(
            f"{autograd}/gen_variable_type.py",
            r"GRADIENT_IMPLEMENTED_FOR_COMPLEX = \{", "GRADIENT_IMPLEMENTED_FOR_COMPLEX",
            list_entries.complex_gradients, indent=4,
        ),
        ListEdit(
            f"{csrc}/autograd/FunctionsManual.h",
            r"\} // namespace torch::autograd::generated::details", "headers of derivative helpers",
            partial(list_entries.includes, extra_headers), comment="//",
        ),
        # Tables of functions that PyTorch's Python code looks into.
        ListEdit(
            "torch/_subclasses/fake_impls.py",
            END_OF_FILE, "rules for fake tensors",
            lambda _manifest, _upstream: fake_impls.splitlines(),
        ),
        ListEdit(
            "torch/overrides.py",
            r"    ret: [dD]ict\[Callable, Callable\] = \{", "get_testing_overrides",
            list_entries.testing_overrides, indent=8,
        ),
        ListEdit(
            "torch/overrides.py",
            r"        torch\.typename,", "get_ignored_functions",
            list_entries.ignored_functions, indent=8,
        ),
        ListEdit(
            "torch/_dynamo/trace_rules.py",
            r"torch_name_rule_map = \[", "torch_c_binding_in_graph_functions",
            list_entries.in_graph_functions, place="before",
        ),
        ListEdit(
            "torch/utils/_device.py",
            r"        torch\.empty,", "_device_constructors",
            list_entries.device_constructors, indent=8,
        ),
        ListEdit(
            "torch/fx/node.py",
            r"_side_effectful_functions: [sS]et\[Callable.*\] = \{", "_side_effectful_functions",
            list_entries.side_effects, indent=4,
        ),
        # Places where upstream hands every overload of a name to code written for its own.
        ListEdit(
            "torch/_decomp/__init__.py",
            r"    for op_overload in overloads:", "overloads that decompositions are for",
            partial(list_entries.added_overloads, "overloads", "_f is op"),
            indent=4, place="before",
        ),
        ListEdit(
            "torch/_inductor/lowering.py",
            r"    return aten_fn", "overloads that lowerings are for",
            partial(
                list_entries.added_overloads, "aten_fn",
                "not isinstance(_f, torch._ops.OpOverload) or _f.overloadpacket not in aten_fn",
            ),
            indent=4, place="before",
        ),
        # Public names of operators with a python_module.
        *(
            ListEdit(
                path, END_OF_FILE, f"the public names of torch.{module}",
                partial(list_entries.module_names, module, home),
            )
            for module, (path, home) in MODULES.items()
        ),
    ]  # fmt: skip
    return edits if mode == "graft" else [*edits, *_source_tree_lists()]


def _source_tree_lists() -> list[ListEdit]:
    """What a wheel has not: stub templates kept by hand, and a source of libtorch_python.

    The Meta kernels that know symbolic shapes go into the library that is loaded after libtorch.
    """
    return [
        ListEdit(
            "torch/_C/_nn.pyi.in", END_OF_FILE, "stubs of torch._C._nn", stubs.nn_stub
        ),
        ListEdit(
            "torch/nn/functional.pyi.in", END_OF_FILE, "stubs of torch.nn.functional",
            stubs.functional_stub,
        ),
        ListEdit(
            templates.SYMBOLIC_INCLUDED_BY, END_OF_FILE, "Meta kernels that know symbolic shapes",
            list_entries.symbolic_meta, comment="//",
        ),
    ]  # fmt: skip
