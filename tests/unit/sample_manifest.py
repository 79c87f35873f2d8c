"""A manifest with an operator of each kind that hooks and stubs tell apart, and its tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchfork.codegen.model import Deprecated, Manifest, Operator, StructSeq

SAMPLE = Path(__file__).parent.parent / "sample_upstream"


def operator(schema: str, **changes: Any) -> Operator:
    """An operator of a schema, with what differs from a plain one."""
    full = schema.partition("(")[0]
    name, _, overload = full.partition(".")
    plain = Operator(
        name=name, overload=overload, schema=schema, base_name=name.removesuffix("_"),
        kind="functional", generated=False, variants=("function",), python_module=None,
        python_function=True, python_method=False, new_name=True, new_base_name=True,
        view_of=None, composite_implicit=False, differentiable=False,
        tensor_arguments=True, factory=False, structseq=None,
        pyi_function=(f"def {name}(input: Tensor) -> Tensor: ...",), pyi_method=(),
    )  # fmt: skip
    return replace(plain, **changes)


def method(name: str, parameters: str = "") -> dict[str, Any]:
    """What makes an operator a method too."""
    return {"python_method": True, "pyi_method": (f"def {name}(self{parameters}) -> Tensor: ...",)}


FACTORY = """\
def gfull(
    size: Sequence[_int | SymInt],
    *,
    dtype: _dtype | None = None,
    device: DeviceLikeType | None = None,
) -> Tensor: ..."""

STRUCTSEQ = """\
class gpair(tuple[Tensor, Tensor]):
    @property
    def low(self) -> Tensor: ...
    @property
    def high(self) -> Tensor: ...
    n_fields: Final[_int] = 2"""

OPERATORS = [
    operator(
        "gdh(Tensor(a) self) -> Tensor(a)",
        kind="view", view_of="self", composite_implicit=True, **method("gdh"),
    ),
    operator("gdh_copy(Tensor self) -> Tensor", differentiable=True),
    operator(
        "gview(Tensor(a) self) -> Tensor(a)", kind="view", view_of="self", differentiable=True
    ),
    operator(
        "gadd(Tensor self, Tensor other, *, Scalar alpha=2) -> Tensor",
        differentiable=True,
        pyi_function=(
            "def gadd(input: Tensor, other: Tensor, *, alpha: Number | _complex = 2, "
            "out: Tensor | None = None) -> Tensor: ...",
        ),
        **method("gadd", ", other: Tensor, *, alpha: Number | _complex = 2"),
    ),
    operator(
        "gadd_(Tensor(a!) self, Tensor other, *, Scalar alpha=2) -> Tensor(a!)",
        kind="inplace", python_function=False, differentiable=True, pyi_function=(),
        **method("gadd_", ", other: Tensor, *, alpha: Number | _complex = 2"),
    ),
    operator(
        "gadd.out(Tensor self, Tensor other, *, Scalar alpha=2, Tensor(a!) out) -> Tensor(a!)",
        kind="out", pyi_function=(),
    ),
    operator(
        "gfull(SymInt[] size, *, ScalarType? dtype=None) -> Tensor",
        factory=True, tensor_arguments=False,
        pyi_function=(FACTORY, "def gfull(*size: _int | SymInt) -> Tensor: ...",),
    ),
    operator(
        "gpair(Tensor self, MemoryFormat f=contiguous_format) -> (Tensor low, Tensor high)",
        structseq=StructSeq("gpair", ("low", "high"), STRUCTSEQ),
        pyi_function=(
            "def gpair(input: Tensor, f: memory_format = contiguous_format) "
            "-> torch.return_types.gpair: ...",
        ),
    ),
    operator("gcheck(Tensor self, int rank) -> ()", pyi_function=("def gcheck() -> None: ...",)),
    operator(
        "gshout(Tensor self) -> Tensor", python_function=False, pyi_function=(), **method("gshout")
    ),
    operator(
        "gnn(Tensor self, float p=0.5) -> Tensor", python_module="nn",
        pyi_function=("def gnn(input: Tensor, p: _float = 0.5) -> Tensor: ...",),
    ),
    operator("special_g(Tensor self) -> Tensor", python_module="special", differentiable=True),
    operator("_special_g_private(Tensor self) -> Tensor", python_module="special"),
    operator("special_present(Tensor self) -> Tensor", python_module="special"),
    operator("linalg_g(Tensor self) -> Tensor", python_module="linalg"),
    operator("fft_g(Tensor self) -> Tensor", python_module="fft"),
    operator(
        "sinc.mode(Tensor self, str mode) -> Tensor",
        new_name=False, new_base_name=False, differentiable=True,
        pyi_function=("def sinc(input: Tensor, mode: str) -> Tensor: ...",),
        **method("sinc", ", mode: str"),
    ),
    operator(
        "where.mode(Tensor condition, str mode) -> Tensor", new_name=False, new_base_name=False,
        pyi_function=("def where(condition: Tensor, mode: str) -> Tensor: ...",),
    ),
    operator(
        "blocked.mode(Tensor self, str mode) -> Tensor", new_name=False, new_base_name=False,
        pyi_function=("def blocked(input: Tensor, mode: str) -> Tensor: ...",),
    ),
    operator(
        "gadd_backward(Tensor grad, Scalar alpha) -> Tensor", python_function=False, pyi_function=()
    ),
]  # fmt: skip

DEPRECATED = [
    Deprecated(
        name="gadd",
        schema="gadd(Tensor self, Scalar alpha, Tensor other) -> Tensor",
        aten="gadd(self, other, alpha)",
        python_module=None,
        pyi_function=("def gadd(self: Tensor, alpha: Number, other: Tensor) -> Tensor: ...",),
    )
]

MANIFEST = Manifest(tuple(OPERATORS), tuple(DEPRECATED))
NOTHING = Manifest()


def reader(root: Path = SAMPLE, over: dict[str, str] | None = None) -> Callable[[str], str | None]:
    """read(path) over a tree, with some files replaced."""
    replaced = over or {}

    def read(path: str) -> str | None:
        if path in replaced:
            return replaced[path]
        file = root / path
        return file.read_text(encoding="utf-8") if file.is_file() else None

    return read


def source_reader(over: dict[str, str] | None = None) -> Callable[[str], str | None]:
    """The sample as a source tree lays it out."""
    plain = reader()
    # no wheel has the sources of libtorch_python
    replaced = {"torch/csrc/autograd/init.cpp": "// of libtorch_python\n", **(over or {})}

    def read(path: str) -> str | None:
        if path in replaced:
            return replaced[path]
        moved = path.replace("tools/autograd/", "torchgen/packaged/autograd/")
        moved = moved.replace("torch/csrc/", "torch/include/torch/csrc/")
        return plain(moved)

    return read
