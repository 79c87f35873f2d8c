"""Where the zoo's operators are found, how they refuse, and what they mutate."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves
from zoo_cases import maker

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_operators_of_a_module_are_in_its_builtin_module_and_nowhere_else() -> None:
    for module, name in (
        (torch._C._nn, "zoo_nn_gate"),
        (torch._C._nn, "zoo_nn_scaled"),
        (torch._C._special, "zoo_special_cube"),
        (torch._C._linalg, "zoo_linalg_trace"),
        (torch._C._fft, "zoo_fft_energy"),
    ):
        assert hasattr(module, name)
        assert not hasattr(torch, name)
        assert not hasattr(torch.Tensor, name)
        assert name in dir(module)


def test_module_operator_has_an_out_argument() -> None:
    x = maker()(3)
    out = torch.empty(0, dtype=x.dtype)
    assert torch._C._special.zoo_special_cube(x, out=out) is out
    assert_close(out, x**3)


def test_new_overload_leaves_its_siblings_as_they_were() -> None:
    a, b = maker()(3), maker()(3)
    assert_close(torch.hypot(a, b), (a * a + b * b).sqrt())
    assert_close(torch.hypot(a, b, scale=3), 3 * (a * a + b * b).sqrt())
    assert_close(a.hypot(b), torch.hypot(a, b))
    assert_close(a.hypot(b, scale=3), torch.hypot(a, b, scale=3))
    out = torch.empty(0, dtype=a.dtype)
    assert torch.hypot(a, b, out=out) is out
    assert_close(a.clone().hypot_(b), out)
    assert set(torch.ops.aten.hypot.overloads()) >= {"default", "out", "zoo", "zoo_out"}


def test_new_overload_with_named_returns_has_its_siblings_type() -> None:
    """Else isinstance, pytrees and vmap of upstream's own overload would no longer know it."""
    a, b = maker()(3), maker()(3)
    for result in (torch.aminmax(a), torch.aminmax(a, b)):
        assert type(result) is torch.return_types.aminmax
        assert [type(leaf) for leaf in tree_leaves(result)] == [torch.Tensor, torch.Tensor]
    assert_close(torch.aminmax(a, b).min, torch.minimum(a, b))
    assert_close(torch.aminmax(a, b).max, torch.maximum(a, b))
    rows = maker()(4, 3)
    assert_close(torch.vmap(torch.aminmax)(rows).max, rows.amax(1))


def test_wrong_arguments_are_answered_with_every_overload() -> None:
    with pytest.raises(TypeError, match=r"(?s)hypot\(\) received.*Number scale"):
        torch.hypot("a", "b", "c")


def test_deprecated_signatures_work_and_warn() -> None:
    a, b = maker()(3), maker()(3)
    torch.set_warn_always(True)
    try:
        with pytest.warns(UserWarning, match="deprecated"):
            assert_close(torch.zoo_blend(a, 3, b), 3 * a * b)
        with pytest.warns(UserWarning, match="deprecated"):
            assert_close(a.clone().zoo_blend_(3, b), 3 * a * b)
        out = torch.empty(0, dtype=a.dtype)
        with pytest.warns(UserWarning, match="deprecated"):
            assert torch.zoo_blend(a, 3, b, out=out) is out
    finally:
        torch.set_warn_always(False)
    assert_close(out, 3 * a * b)


def test_method_only_is_no_function() -> None:
    assert not hasattr(torch, "zoo_shout")
    assert_close(torch.ones(2).zoo_shout(), torch.full((2,), 2.0))


def test_backward_operators_have_no_python_function() -> None:
    for name in ("zoo_skip_backward", "zoo_gram_backward", "zoo_window_sum_backward"):
        assert not hasattr(torch, name)
        assert hasattr(torch.ops.aten, name)


def test_in_place_variants_return_self_and_bump_the_version() -> None:
    x = maker()(4)
    for result in (x.zoo_softclip_(), x.zoo_blend_(x), x.zoo_fill_ramp_(2)):
        assert result is x
    assert x._version == 3
    assert_close(x, torch.tensor([0.0, 2, 4, 6], dtype=x.dtype))


def test_in_place_operators_are_functionalized_and_compiled() -> None:
    def fill(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.zoo_fill_ramp_(2).zoo_softclip_(5)
        return y + torch.zoo_running_mean(y, y[0].clone())

    x = maker()(2, 3)
    expected = fill(x)
    assert_close(torch.func.functionalize(fill)(x), expected)
    assert_close(torch.compile(fill, fullgraph=True, backend="aot_eager")(x), expected)


def test_compiled_code_mutates_its_inputs_as_eager_code_does() -> None:
    def both(x: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
        x.zoo_fill_ramp_(3)
        return torch.zoo_running_mean(x, running, 0.5)

    eager = [torch.rand(4, 3), torch.zeros(3)]
    compiled = [t.clone() for t in eager]
    result = torch.compile(both, fullgraph=True, backend="aot_eager")(*compiled)
    assert_close(result, both(*eager))
    assert_close(compiled, eager)


def test_functional_variant_of_a_mutating_operator() -> None:
    x, running = torch.rand(4, 3), torch.zeros(3)
    result, moved = torch.ops.aten.zoo_running_mean_functional(x, running, 0.5)
    assert_close((result, running), (x, torch.zeros(3)))
    assert_close(moved, x.mean(0) / 2)
    assert_close(torch.ops.aten.zoo_fill_ramp(running, 2), torch.tensor([0.0, 2, 4]))


def test_broadcasting_promotion_and_layouts_of_tensor_iterator_operators() -> None:
    a = torch.arange(6).reshape(2, 3)
    assert torch.zoo_softclip(a).dtype == torch.get_default_dtype()
    assert torch.zoo_blend(a, 2.5 * torch.ones(3, dtype=torch.float16)).dtype == torch.float16
    assert torch.zoo_muladd(a, torch.tensor(2), torch.tensor(0.5)).dtype == torch.float32
    x = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert torch.zoo_softclip(x).stride() == x.stride()
    assert_close(torch.zoo_blend(x, x), x * x)
    assert torch.zoo_blend(torch.empty(0, 3), torch.empty(3)).shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.complex64])
def test_vectorized_kernels_for_every_type(dtype: torch.dtype) -> None:
    a = (torch.arange(100) % 5).to(dtype)
    assert_close(torch.zoo_blend(a, a, alpha=2), 2 * a * a)
    assert_close(torch.zoo_muladd(a, a, a), a * a + a)
    assert_close(torch.zoo_window_sum(a, 3), a.unfold(0, 3, 1).sum(-1).to(dtype))


def test_checks_name_the_operator_and_the_value() -> None:
    x = torch.rand(3)
    with pytest.raises(RuntimeError, match="zoo_softclip: limit must be positive, got -1"):
        torch.zoo_softclip(x, -1)
    with pytest.raises(RuntimeError, match="zoo_softclip: self must be real, got ComplexFloat"):
        torch.zoo_softclip(x + 0j)
    with pytest.raises(RuntimeError, match="zoo_blend: alpha must be an integer"):
        torch.zoo_blend(x.int(), x.int(), alpha=0.5)
    with pytest.raises(RuntimeError, match="zoo_window_sum: size must be between 1 and 3, got 4"):
        torch.zoo_window_sum(x, 4)
    with pytest.raises(RuntimeError, match=r"zoo_pool: mode must be .*, got 'median'"):
        torch.zoo_pool(x, mode="median")
    with pytest.raises(RuntimeError, match="zoo_skip: step must be positive, got 0"):
        torch.zoo_skip(x, 0)


def test_out_arguments_of_structured_operators_are_checked() -> None:
    x = torch.rand(3)
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.zoo_blend(x, x, out=torch.empty(3, dtype=torch.int32))
    with pytest.raises(RuntimeError, match=r"(?i)expected.*dtype|Expected out tensor"):
        torch.zoo_window_sum(x, 2, out=torch.empty(2, dtype=torch.float64))
    with pytest.warns(UserWarning, match="resized"):
        torch.zoo_blend(x, x, out=torch.empty(5))


def test_sparse_kernel() -> None:
    dense = torch.tensor([[0.0, 2], [3, 0]])
    assert_close(torch.zoo_total(dense.to_sparse()), torch.tensor(5.0))


def test_cpu_only_operator_works_on_the_cpu() -> None:
    assert_close(torch.zoo_cpu_only(torch.tensor([1.25, -2.5])), torch.tensor([0.25, -0.5]))


def test_cpu_only_operator_names_itself_on_other_devices() -> None:
    with pytest.raises(NotImplementedError, match=r"aten::zoo_cpu_only.*Meta"):
        torch.zoo_cpu_only(torch.empty(2, device="meta"))


def test_cpu_only_operator_compiles_because_its_kernel_stands_in_for_a_meta_one() -> None:
    compiled = torch.compile(torch.zoo_cpu_only, fullgraph=True, backend="aot_eager")
    assert_close(compiled(torch.tensor([1.25, -2.5])), torch.tensor([0.25, -0.5]))


def test_cpu_only_operator_without_formula_does_not_pretend_to_be_differentiable() -> None:
    result = torch.zoo_cpu_only(torch.ones(2, requires_grad=True))
    with pytest.raises(RuntimeError, match="derivative for aten::zoo_cpu_only is not implemented"):
        result.sum().backward()


def test_meta_kernel_serves_fake_tensors() -> None:
    with FakeTensorMode():
        a, b = torch.empty(3, 1), torch.empty(4, dtype=torch.float64)
        assert torch.zoo_muladd(a, b, b).shape == (3, 4)
        assert torch.zoo_dither(a).shape == (3, 1)


@cuda
def test_cuda_kernels_equal_the_cpu_ones() -> None:
    make = maker()
    a, b, c = make(3, 1), make(4), make(3, 4)
    for call in (
        lambda a, b, c: torch.zoo_softclip(c, 2),
        lambda a, b, c: torch.zoo_blend(a, b, alpha=3),
        lambda a, b, c: torch.zoo_muladd(a, b, c),
        lambda a, b, c: torch.zoo_window_sum(c, 2, 0),
    ):
        assert_close(call(a.cuda(), b.cuda(), c.cuda()).cpu(), call(a, b, c))


@cuda
def test_composites_and_views_work_on_cuda_without_kernels_of_their_own() -> None:
    x = maker()(4, 4)
    assert_close(torch.zoo_gram(x.cuda(), x.cuda()).cpu(), torch.zoo_gram(x, x))
    assert torch.zoo_skip(x.cuda())._is_view()
    assert torch.zoo_ramp(3, device="cuda").is_cuda
    with pytest.raises(NotImplementedError, match=r"aten::zoo_cpu_only.*'CUDA' backend"):
        torch.zoo_cpu_only(x.cuda())
