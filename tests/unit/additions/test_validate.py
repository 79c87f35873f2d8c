"""The checks before the code generator: each refuses one thing, by its line, with a way out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import sample_additions as sample
from sample_files import lay

from torchfork.additions import formulas, ranges, validate
from torchfork.additions.load import load
from torchfork.errors import (
    AdditionsError,
    CollisionError,
    DerivativeError,
    ForkError,
    KernelError,
    NeedsSourceLaneError,
    combined,
)
from torchfork.upstream.base import Upstream

UPSTREAM = Upstream(
    (
        "relu(Tensor self) -> Tensor",
        "norm.dim(Tensor self, int[1] dim, *, bool keepdim=False) -> Tensor",
        "split(Tensor(a -> *) self, int n) -> Tensor(a)[]",
        "hypot(Tensor self, Tensor other) -> Tensor",
        "hypot.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
    ),
    frozenset({"core", "pointwise"}),
    frozenset({"CPU", "CUDA", "Meta", "CompositeExplicitAutograd", "CompositeImplicitAutograd"}),
    {
        "torch": frozenset({"load", "norm", "typing", "_tree"}),
        "Tensor": frozenset({"item", "hooks"}),
        "nn": frozenset({"glu_sum"}),
        "special": frozenset({"airy"}),
        "at": frozenset({"indexing", "infer_size", "norm"}),
    },
)
COMPOSITE = "- func: swing(Tensor self) -> Tensor\n"


def checked(root: Path, native: str, derivatives: str = "", **sources: str) -> None:
    """Raise what is refused, as a build does."""
    additions = sample.write(root, native, derivatives, **sources)
    refused = list(validate.objections(additions, UPSTREAM, "9.1.0"))
    if refused:
        raise combined(refused)


def test_additions_that_are_fine_pass(tmp_path: Path) -> None:
    checked(tmp_path, sample.NATIVE, sample.DERIVATIVES)


REFUSALS = [
    ("- func: relu(Tensor self)->Tensor", 1, CollisionError, "exists in torch 9.1.0"),
    ("- func: relu(Tensor self, int n) -> Tensor", 1, NeedsSourceLaneError, "would change"),
    ("- func: a(Tensor x) -> Tensor\n  variants: method", 2, AdditionsError, "'Tensor self'"),
    ("- func: a(Tensor? self) -> Tensor\n  variants: method", 2, AdditionsError, "'Tensor self'"),
    ("- func: a(Tensor self) -> Tensor\n  tags: brand_new", 2, NeedsSourceLaneError, "brand_new"),
    ("- func: a() -> Tensor\n  tags: [core, other]", 2, NeedsSourceLaneError, "'other'"),
    ("- func: a() -> Tensor\n  dispatch:\n    CPU, Abacus: a", 2, NeedsSourceLaneError, "Abacus"),
    ("- func: a() -> Tensor\n  dispatch: a", 2, AdditionsError, "not a mapping"),
    ("- func: a() -> Tensor\n  dispatch: {}", 2, AdditionsError, "names a kernel"),
    ("- func: a(Tensor(a!) o) -> Tensor(a!)\n  structured: True", 1, AdditionsError, "a kernel"),
    ("- func: a() -> Tensor\n  dispatch:\n    CPU, X: a\n    CPU: b", 2, AdditionsError, "twice"),
    ("- func: a() -> Tensor\n  structured_inherits: Iterator", 2, AdditionsError, "inherits"),
    ("- func: a(Tensor x) -> Tensor\n  precomputed:\n  - dim -> int n", 2, AdditionsError, "'dim'"),
    ("- func: a(Tensor x, int EOF) -> Tensor", 1, AdditionsError, "argument 'EOF'"),
    ("- func: ä(Tensor x) -> Tensor", 1, AdditionsError, "operator 'ä' [^$]* ASCII"),
    ("- func: a(Tensor größe) -> Tensor", 1, AdditionsError, "argument 'größe' [^$]* ASCII"),
    ("- func: a() -> (Tensor b, Tensor b)", 1, AdditionsError, "two results"),
    ("- func: a() -> (Tensor b, Tensor double)", 1, AdditionsError, "result 'double'"),
    ("- func: load(Tensor self) -> Tensor", 1, CollisionError, "name of torch.load"),
    ("- func: _tree.x(Tensor self) -> Tensor", 1, CollisionError, "name of torch._tree"),
    ("- func: item(Tensor self) -> Tensor\n  variants: method", 1, CollisionError, "Tensor.item"),
    ("- func: glu_sum() -> Tensor\n  python_module: nn", 1, CollisionError, "functional.glu_sum"),
    ("- func: special_airy() -> Tensor\n  python_module: special", 1, CollisionError, "al.airy in"),
    ("- func: a(Tensor x) -> Tensor\n  python_module: nnn", 2, AdditionsError, "module 'nnn'"),
    ("- func: a.x() -> Tensor\n  python_module: torch", 2, AdditionsError, "module 'torch'"),
    ("- func: a() -> Tensor\n  python_module: [nn]", 2, AdditionsError, "module"),
    ("- func: mine::a(Tensor x) -> Tensor", 1, AdditionsError, "names a namespace"),
    ("- func: aten::a(Tensor x) -> Tensor", 1, AdditionsError, "names a namespace"),
    ("- func: Storage.of(Tensor x) -> Tensor", 1, CollisionError, "a capital letter"),
    ("- func: lambda(Tensor x) -> Tensor", 1, AdditionsError, "operator 'lambda'"),
    ("- func: a(Tensor x, int[2] union=[1, 1]) -> Tensor", 1, AdditionsError, "argument 'union'"),
    ("- func: a(Tensor x, *, Tensor(a!) is) -> Tensor(a!)", 1, AdditionsError, "argument 'is'"),
    ("- func: a.default(Tensor x) -> Tensor", 1, AdditionsError, "overload name 'default'"),
    ("- func: a(Tensor x, float b=1,5) -> Tensor", 1, AdditionsError, "'1,5', the default of 'b'"),
    ("- func: a(Tensor x, int[2] b=[1, 1]) -> Tensor", 1, AdditionsError, "1, 1]', the default"),
    ("- func: a(Tensor x, *, int[2] x=1) -> Tensor", 1, AdditionsError, "are called 'x'"),
    *((f"- func: a(Tensor x, int[2] b=[1,2], {y}", 1, AdditionsError, "'b' before it") for y in (
        "Tensor y) -> Tensor", "Tensor? y) -> Tensor", "*, SymInt[2]? y) -> Tensor",
        "Tensor(a!) y, *, Tensor(b!) out) -> Tensor(b!)",
        "int y=1) -> Tensor\n  cpp_no_default_args: ['y']",
    )),
    ("- func: a(Tensor x, *, float b=.5f) -> Tensor", 1, AdditionsError, "'.5f', the default"),
    ("- func: a(Tensor x, int b=1 + 1, int c=2) -> Tensor", 1, AdditionsError, "default of 'b'"),
    # names that the generated C++ has for something else
    ("- func: a(Tensor self, Tensor op) -> Tensor", 1, AdditionsError, "argument 'op'"),
    ("- func: a(Tensor x, *, int grad_fn=1) -> Tensor", 1, AdditionsError, "argument 'grad_fn'"),
    ("- func: a(Tensor Tensor) -> Tensor", 1, AdditionsError, "argument 'Tensor'"),
    ("- func: a(Tensor result) -> Tensor", 1, AdditionsError, "argument 'result'"),
    ("- func: a(Tensor self, Tensor self_) -> Tensor", 1, AdditionsError, "argument 'self_'"),
    ("- func: indexing(Tensor self) -> Tensor", 1, CollisionError, "name of a namespace"),
    ("- func: infer_size(int[] a, int[] b) -> int[]", 1, CollisionError, "helper function"),
    ("- func: meta(Tensor self) -> Tensor", 1, CollisionError, "of a namespace"),
    ("- func: a(Tensor x, Layout l=strided) -> Tensor", 1, AdditionsError, "of 'l'"),
    ("- func: a(Tensor x, *, MemoryFormat? m=odd, int n=1) -> Tensor", 1, AdditionsError, "of 'm'"),
    ("- func: at(Tensor self) -> Tensor\n  variants: method", 1, CollisionError, "of a namespace"),
    # the types of upstream's out variant
    *((f"- func: hypot.mine(Tensor self, {more}", 1, CollisionError, r"'hypot\.out'") for more in (
        "Tensor other, Tensor third) -> Tensor",
        "*, Tensor second, Tensor(a!) third) -> Tensor(a!)",
    )),
]  # fmt: skip


@pytest.mark.parametrize(("native", "line", "kind", "says"), REFUSALS)
def test_a_declaration_that_the_base_cannot_take_is_refused(
    tmp_path: Path, native: str, line: int, kind: type[ForkError], says: str
) -> None:
    with pytest.raises(kind, match=says) as caught:
        checked(tmp_path, native + "\n")
    assert caught.value.where.endswith(f"native_functions_additions.yaml:{line}")
    assert caught.value.next
    if kind is NeedsSourceLaneError:
        assert "--from-source" in caught.value.next and caught.value.why


@pytest.mark.parametrize(
    "native",
    [
        "- func: norm.mine(Tensor self, str dim) -> Tensor",  # torch.norm dispatches to it
        "- func: load_(Tensor(a!) self) -> Tensor(a!)",
        "- func: load(Tensor self) -> Tensor\n  variants: method",
        "- func: item(Tensor self) -> Tensor",
        "- func: load(Tensor self) -> Tensor\n  python_module: nn",
        "- func: _glu_sum(Tensor self) -> Tensor\n  python_module: nn",
        "- func: a(Tensor self, int from) -> Tensor",  # upstream has arguments of this name
        "- func: import_(Tensor(a!) self) -> Tensor(a!)",
        "- func: a.out(Tensor self, *, Tensor(a!) result) -> Tensor(a!)",
        "- func: a(Tensor x, Tensor y_, Tensor ops) -> Tensor",
        "- func: indexing(Tensor self) -> Tensor\n  variants: method",
        # types of its own
        "- func: hypot.mine(Tensor self, Tensor other, *, Scalar scale) -> Tensor",
        "- func: hypot.mine(Tensor self, Tensor other, int[2] size=[1,1]) -> Tensor",
        "- func: hypoty(Tensor self, Tensor other, Tensor third) -> Tensor",
        '- func: a(Tensor x, int[2] b=[1,-1], float c=-1e-05, str d="\'=, )") -> Tensor',
        "- func: several(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]",
        "- func: a.out(Tensor self, int n=2, *, Tensor(a!) out, Tensor(b!) y) -> Tensor(a!)",
    ],
)
def test_a_name_that_is_free_and_types_of_ones_own_pass(tmp_path: Path, native: str) -> None:
    checked(tmp_path, native + "\n")


def test_every_objection_of_a_run_is_named(tmp_path: Path) -> None:
    names = ("relu", "load", "lambda", "mine::a")
    native = "".join(f"- func: {name}(Tensor self) -> Tensor\n" for name in names)
    with pytest.raises(CollisionError) as caught:
        checked(tmp_path, native, "- name: nobody(Tensor self) -> Tensor\n  self: grad\n")
    wheres = [error.where.rpartition("/")[2] for error in (caught.value, *caught.value.also)]
    assert wheres == [
        *(f"native_functions_additions.yaml:{line}" for line in (1, 2, 3, 4)),
        "derivatives_additions.yaml:1",
    ]


PAIR = "pair(Tensor x, Tensor grad, int name, int x_ix) -> (Tensor low, Tensor high)"
FORMULAS = [
    ("- name: relu(Tensor self) -> Tensor\n  self: grad", 1, NeedsSourceLaneError, "would change"),
    ("- name: nobody(Tensor self) -> Tensor\n  self: grad", 1, DerivativeError, "nowhere"),
    ("- name: swing(Tensor x) -> Tensor\n  x: grad", 1, DerivativeError, "differently"),
    (sample.DERIVATIVES + "  other: grad", 3, DerivativeError, "names 'other'"),
    (sample.DERIVATIVES + "  self, other: grad", 3, DerivativeError, "names 'other'"),
    (sample.DERIVATIVES + "  result1: self_t", 3, DerivativeError, "names 'result1'"),
    (sample.DERIVATIVES + "  other: not_differentiable", 3, DerivativeError, "names 'other'"),
    ("- name: swing(Tensor self) -> Tensor\n  self: grad * result0", 2, DerivativeError, "result0"),
    ("- name: swing(Tensor self) -> Tensor\n  self: undifferentiable", 2, DerivativeError, "no f"),
]


@pytest.mark.parametrize(("formulas", "line", "kind", "says"), FORMULAS)
def test_a_formula_that_fits_no_declaration_is_refused(
    tmp_path: Path, formulas: str, line: int, kind: type[ForkError], says: str
) -> None:
    with pytest.raises(kind, match=says) as caught:
        checked(tmp_path, sample.NATIVE, formulas + "\n")
    assert caught.value.where.endswith(f"derivatives_additions.yaml:{line}")


def test_results_may_be_named_in_formulas_as_the_schema_names_them(tmp_path: Path) -> None:
    schema = "sway.more(Tensor self, int n=1) -> (Tensor left, Tensor right)"
    checked(
        tmp_path, sample.NATIVE, f"- name: {schema}\n  self: grad\n  left, right: auto_linear\n"
    )
    with pytest.raises(DerivativeError, match="names 'result0'"):
        checked(tmp_path, sample.NATIVE, f"- name: {schema}\n  result0: self_t\n")
    checked(tmp_path, sample.NATIVE, sample.DERIVATIVES + "  result: auto_linear\n")


@pytest.mark.parametrize("dispatch", ["", "  dispatch:\n    CompositeImplicitAutograd: two\n"])
def test_a_formula_of_a_composite_is_refused(tmp_path: Path, dispatch: str) -> None:
    with pytest.raises(DerivativeError, match="made of operators") as caught:
        checked(tmp_path, COMPOSITE + dispatch, sample.DERIVATIVES)
    assert caught.value.where.endswith("derivatives_additions.yaml:1")
    assert "CompositeExplicitAutograd" in caught.value.next
    checked(tmp_path, f"{COMPOSITE}  structured_delegate: swing.out\n", sample.DERIVATIVES)


@pytest.mark.parametrize(
    ("call", "says"),
    [("", "nothing"), ("  aten: swing\n", "nothing"), ("  aten: swing(self, b)\n", "with 'b'")],
)
def test_a_deprecation_that_calls_nothing_is_refused(tmp_path: Path, call: str, says: str) -> None:
    deprecated = "- name: swing(Tensor self, *, Scalar a) -> Tensor\n"
    root = sample.write(tmp_path).root
    for text in (call, "  aten: swing(self, 1)\n"):
        lay(root, {"deprecated_additions.yaml": deprecated + text})
        errors = list(validate.objections(load(root), UPSTREAM, "9.1.0"))
        assert [says in error.what for error in errors] == ([True] if text == call else [])
        assert len(ranges.without(load(root), errors).deprecated.entries) == (text != call)


def test_a_registration_for_an_operator_that_nobody_declares_is_refused(tmp_path: Path) -> None:
    rule = 'TORCH_LIBRARY_IMPL(aten, FuncTorchBatched, m) {{\n  m.impl("{}", f);\n}}\n'
    for fine in ("relu", "swing", "aten::swing", "swing.out"):
        checked(tmp_path / fine, sample.NATIVE, functorch__Rule_cpp=rule.format(fine))
    with pytest.raises(KernelError, match="'aten::swung'") as caught:
        checked(tmp_path, sample.NATIVE, functorch__Rule_cpp="\n" + rule.format("swung"))
    assert caught.value.where.endswith("aten_src/functorch/Rule.cpp:3")


@pytest.mark.parametrize(
    ("fields", "line", "says"),
    [
        ("  x: grad * x", 2, "argument 'grad'"),
        ("  x: grads[0]\n  low: x_t * result1", 3, "uses 'result1'"),
        ("  x: grad_low * result", 2, "uses 'result'"),
        ("  grad: not_differentiable", 2, "no formula"),
        ("  x: grads[0] * x.size(name)", 2, "argument 'name'"),
        ("  x: grads[0] * x.size(x_ix)", 2, "argument 'x_ix'"),
        ("  x_ix: grads[0]", 2, "'x_ix', which can have no gradient"),
        ("  x, name: grads[0], grads[1]", 2, "'name', which can have no gradient"),
        ("  x: (grads[0]", 2, "do not match: '\\)'"),
        ("  x: f(x[0}, 1)", 2, "do not match: '}'"),
        ("  x: grads[0])", 2, "do not match: '\\)'"),
        ("  x: ''", 2, "it is empty"),
        ("  x: grads[0] *", 2, "ends with '\\*'"),
        ("  x: grads[0] * x ** 2", 2, "at::pow"),
        ("  x: torch.mul(grads[0], x)", 2, "at::mul"),
        ("  x: grads[0];", 2, "ends with ';'"),
        ("  x:", 2, "no text[^$]*reads nothing"),
        ("  x: 0", 2, "no text[^$]*reads 0"),
        ("  x: grads[0] * x_t", 2, "uses 'x_t'[^$]*'x' is an argument"),
        ("  x: auto_linear", 2, "uses 'auto_linear'"),
        ("  x: grads[0]\n  low: grads[0] * x_t", 3, "uses 'grads'[^$]*'low' is a result"),
        ("  low: non_differentiable", 2, "uses 'non_differentiable'"),
        ("  x: grads[0]\n  dispatch:\n    Default:\n      x_ix: f(x)", 2, "beside 'dispatch'"),
    ],
)
def test_words_that_formulas_use_for_something_else_are_refused(
    tmp_path: Path, fields: str, line: int, says: str
) -> None:
    native = f"- func: {PAIR}\n  dispatch:\n    CPU: pair\n"
    with pytest.raises(DerivativeError) as caught:
        checked(tmp_path, native, f"- name: {PAIR}\n{fields}\n")
    assert re.search(says, caught.value.render())
    assert caught.value.where.endswith(f"derivatives_additions.yaml:{line}")
    fine = ["x: f(grads[0], '(') * high", "grad, x_ix: non_differentiable"]
    checked(tmp_path, native, f"- name: {PAIR}\n  {fine[0]}\n  {fine[1]}\n")


MANUAL = """
namespace torch::autograd::generated::details {
TORCH_API at::Tensor hidden_helper(
    const at::Tensor& grad, at::ScalarType (*type)(int));
at::Tensor shown_helper(const at::Tensor&) noexcept;
at::Tensor provided_helper(const at::Tensor&);
template <typename T> T inline_helper(T x) { return x; }
}
"""


def scope_errors(
    root: Path, formula: str, header: str = "", elsewhere: frozenset[str] = frozenset()
) -> list[DerivativeError]:
    """What is refused of a formula for 'swing', with FunctionsManual.h as above."""
    derivatives = f"- name: swing(Tensor self) -> Tensor\n  self: {formula}\n"
    additions = sample.write(
        root, sample.NATIVE, derivatives, native__SwingFunctionsManual_h=header
    )
    scope = formulas.Scope(
        words=formulas.words_in("relu sum at::Tensor self.size(0) " + MANUAL),
        operators=frozenset({"relu", "sum"}),
        manual=MANUAL,
        provided=frozenset({"provided_helper"}),
        elsewhere=lambda wanted: set(wanted) & elsewhere,
        exported=lambda wanted: set(wanted) & {"shown_helper"},
    )
    return formulas.scope_objections(additions, scope)


@pytest.mark.parametrize(
    ("formula", "word"),
    [
        ("grad * coss(self)", "coss"),
        ("grad * slef", "slef"),
        ("grad.symm_sizes()", "symm_sizes"),
        ("hidden_helper(grad, self)", "hidden_helper"),
        ("details::hidden_helper(grad, nullptr)", "hidden_helper"),
        ("\"sum(relu(grad)) + hidden_helper (grad, 'sum')\"", "hidden_helper"),
    ],
)
def test_a_formula_with_a_name_that_it_cannot_call_is_refused_at_its_line(
    tmp_path: Path, formula: str, word: str
) -> None:
    (error,) = scope_errors(tmp_path, formula, elsewhere=frozenset({"nullptr"}))
    assert word in error.what
    assert error.where.endswith("derivatives_additions.yaml:2")


@pytest.mark.parametrize(
    "formula",
    [
        "grad * relu(self) + sum(self).size(0)",
        "provided_helper(grad) + relu(self)",
        "shown_helper(grad) + inline_helper(result) + self_t * original_self_p.size(0)",
        "at::native::anything(grad, self->whatever, self.whichever)",
        "mine(grad) + swing(self) + sway(self) + grads[0]",
        "swing_symint(grad) + relu_outf(grad, self) + sum_symint_out(grad)",
        "c10_name(grad)",
        '"[&]() -> Tensor { auto local = grad; return local; }()"',
        'not_implemented("what ever")',
        "auto_element_wise",
    ],
)
def test_a_formula_whose_names_exist_passes(tmp_path: Path, formula: str) -> None:
    known = frozenset({"c10_name", "not_implemented"})
    assert scope_errors(tmp_path, formula, "Tensor mine(const Tensor& x) {}", known) == []
    # a helper of the additions takes the place of a hidden one
    assert scope_errors(tmp_path, "hidden_helper(grad)", "Tensor hidden_helper(Tensor) {}") == []


def test_a_helper_is_declared_where_generated_code_sees_it_and_defined(tmp_path: Path) -> None:
    derivatives = "- name: swing(Tensor self) -> Tensor\n  self: mine(grad)\n"
    nothing = formulas.Scope(
        frozenset(), frozenset(), "", frozenset(), lambda _: set(), lambda _: set()
    )

    def said(name: str, text: str = "Tensor mine(Tensor);", **sources: str) -> list[str]:
        root = tmp_path / f"{name}{len(sources)}"
        sources[f"native__{name}_h"] = text
        additions = sample.write(root, sample.NATIVE, derivatives, **sources)
        return [error.what for error in formulas.scope_objections(additions, nothing)]

    (unseen,) = said("Plain")
    (undefined,) = said("FunctionsManual")
    assert "nothing that formulas know" in unseen and "defined nowhere" in undefined
    assert said("FunctionsManual", native__Any_cpp="Tensor mine(Tensor x) { return x; }") == []
    assert said("FullFunctionsManual", "inline Tensor mine(Tensor x) { return x; }") == []


def test_words_are_looked_for_in_the_headers_that_generated_code_includes(tmp_path: Path) -> None:
    lay(tmp_path, {"ATen/A.h": "int one();", "ATen/ops/b.h": "two", "c10/x/y.h": "three"})
    wanted = {"one", "two", "three", "thre"}
    assert formulas.headers_with(tmp_path, ("ATen",), wanted) == {"one", "three"}
    assert formulas.headers_with(tmp_path / "c10", ("ATen",), wanted) == wanted


@pytest.mark.parametrize(
    ("declared", "noted"),
    [
        ("  dispatch:\n    CPU, CUDA: swing\n", True),
        ("  dispatch:\n    CPU, CUDA: swing\n    Meta: swing_meta\n", False),
        ("  dispatch:\n    CompositeExplicitAutograd: swing\n", False),
        ("  structured_delegate: swing.out\n", False),
        ("", False),
    ],
)
def test_a_derivative_without_a_meta_kernel_is_noted_with_its_line(
    tmp_path: Path, declared: str, noted: bool
) -> None:
    native = "- func: swing(Tensor self) -> Tensor\n" + declared
    assert list(validate.notes(sample.write(tmp_path, native))) == [], "without a derivative"
    found = list(validate.notes(sample.write(tmp_path, native, sample.DERIVATIVES)))
    assert len(found) == noted
    if noted:
        assert f"\n{tmp_path}/native_functions_additions.yaml:2: 'swing'\n" in found[0]
        (tmp_path / "fake_impls_additions.py").write_text(
            "@register_op_impl(torch.ops.aten.swing.default)\ndef swing(*args): ...\n"
        )
        assert list(validate.notes(load(tmp_path))) == []
