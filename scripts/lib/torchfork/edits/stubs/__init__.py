"""Type stubs of the additions, put into a wheel's own .pyi files.

A source build generates them itself, apart from those of python_module nn (see hooks.registry).
Operators of the other modules have none in either lane: upstream's torch.special and its like are
untyped builtins too.
"""

from __future__ import annotations

from collections.abc import Callable

from ...codegen.model import Manifest
from ...errors import BaseRefusedError
from ...util.blocks import END_OF_FILE, Anchor, block, place, strip_blocks
from ..python_source import defines, has_all
from .collect import function_signatures, method_signatures
from .edit import StubTarget, edit_stub
from .nn import functional_stub, imports

__all__ = ["stub_edits"]

Edit = Callable[[str, Manifest], str]


def stub_edits(read: Callable[[str], str | None], manifest: Manifest) -> dict[str, str]:
    """The stubs that change, by path relative to site-packages, with their new text.

    read and the answer are as those of hooks.text_hooks: blocks of an earlier run are taken out
    first, and only files whose text differs from what `read` gave are in the answer.
    """
    changed: dict[str, str] = {}
    for path, edit in EDITS.items():
        present = read(path)
        if present is None:
            raise BaseRefusedError(
                "a stub that every known release has is not there",
                where=path,
                why="the base is no complete torch",
                next="reinstall the wheel, or use an unmodified one",
            )
        text = edit(strip_blocks(present, path), manifest)
        if text != present:
            changed[path] = text
    return changed


def _end(path: str, what: str) -> Anchor:
    return Anchor(END_OF_FILE, "after", f"of the stubs of {what}")


def _functions(path: str) -> Edit:
    target = StubTarget(path, _end(path, "torch's functions"))
    return lambda text, manifest: edit_stub(text, function_signatures(manifest, None), target)


def _methods(path: str) -> Edit:
    anchor = Anchor(r"class TensorBase\b.*:", "after", "of the stubs of Tensor's methods")
    target = StubTarget(path, anchor, class_name="TensorBase")
    return lambda text, manifest: edit_stub(text, method_signatures(manifest), target)


def _nn(path: str) -> Edit:
    """The stub of torch._C._nn, which does not import every name that signatures use."""
    target = StubTarget(path, _end(path, "torch._C._nn"))

    def edit(text: str, manifest: Manifest) -> str:
        signatures = function_signatures(manifest, "nn")
        needed = imports([hint for found in signatures.values() for hint in found.hints])
        edited = edit_stub(text, signatures, target)
        return edited if edited == text else place(edited, target.anchor, block(needed, "#"), path)

    return edit


def _functional(path: str) -> Edit:
    anchor = _end(path, "torch.nn.functional")

    def edit(text: str, manifest: Manifest) -> str:
        lines = functional_stub(manifest, text)
        return place(text, anchor, block(lines, "#"), path) if lines else text

    return edit


def _return_types(path: str) -> Edit:
    """The classes of named returns."""
    anchor = _end(path, "torch.return_types")

    def edit(text: str, manifest: Manifest) -> str:
        found = {op.structseq.name: op.structseq for op in manifest.operators if op.structseq}
        new = [found[name] for name in sorted(found) if not defines(text, name)]
        lines = [line for structseq in new for line in structseq.pyi.split("\n")]
        if new and has_all(text):
            lines.append(f"__all__ += {[structseq.name for structseq in new]!r}")
        return place(text, anchor, block(lines, "#"), path) if lines else text

    return edit


EDITS: dict[str, Edit] = {
    "torch/_C/_VariableFunctions.pyi": _functions("torch/_C/_VariableFunctions.pyi"),
    "torch/_VF.pyi": _functions("torch/_VF.pyi"),
    "torch/_C/__init__.pyi": _methods("torch/_C/__init__.pyi"),
    "torch/_C/_nn.pyi": _nn("torch/_C/_nn.pyi"),
    "torch/nn/functional.pyi": _functional("torch/nn/functional.pyi"),
    "torch/return_types.pyi": _return_types("torch/return_types.pyi"),
}
