"""The additions are citizens of PyTorch: schema, tracing, compilation, overriding, pickling."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import warnings
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from depthwise_cases import FORMATS, Case, make_inputs
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

aten = torch.ops.aten
SCHEMAS = {
    "gdh": "aten::gdh(Tensor(a) self) -> Tensor(a)",
    "gdh_copy": "aten::gdh_copy(Tensor input) -> Tensor",
    "depthwise_conv2d_ext": (
        "aten::depthwise_conv2d_ext(Tensor input, Tensor weight, Tensor? bias=None, "
        "SymInt[2] stride=[1, 1], SymInt[2] padding=[0, 0], SymInt[2] dilation=[1, 1]) -> Tensor"
    ),
    "depthwise_conv2d_ext_backward": (
        "aten::depthwise_conv2d_ext_backward(Tensor grad_output, Tensor input, Tensor weight, "
        "SymInt[2] stride, SymInt[2] padding, SymInt[2] dilation, bool[3] output_mask) -> "
        "(Tensor grad_input, Tensor grad_weight, Tensor grad_bias)"
    ),
}
FUNCTIONS = ["gdh", "gdh_copy", "depthwise_conv2d_ext"]
CASE = Case(2, 3, 2, (7, 6), (3, 2), stride=(2, 1), padding=(1, 1))


class Block(nn.Module):
    """A module that uses both operators."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 1, 3, 2))
        self.bias = nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        """Convolve, then flatten a contiguous and a transposed tensor."""
        y = torch.depthwise_conv2d_ext(x, self.weight, self.bias, [2, 1], [1, 1], [1, 1])
        return torch.gdh(y.relu()) + y.transpose(2, 3).gdh()


@pytest.mark.parametrize("name", list(SCHEMAS))
def test_schema_is_what_the_yaml_says(name: str) -> None:
    """Registered in aten, aliasing included."""
    assert str(getattr(aten, name).default._schema) == SCHEMAS[name]


def test_out_variants_are_registered() -> None:
    """Written by the code generator, for every operator that makes memory."""
    for name in ("gdh_copy", "depthwise_conv2d_ext", "depthwise_conv2d_ext_backward"):
        assert getattr(aten, name).out._schema.is_mutable
    assert aten.gdh.overloads() == ["default"]


def test_dispatch_keys() -> None:
    """Composite where the YAML says so, kernels for CPU, Meta and autograd elsewhere."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    assert has("aten::gdh", "CompositeImplicitAutograd")
    assert has("aten::gdh_copy", "CompositeExplicitAutograd")
    for name in ("aten::depthwise_conv2d_ext", "aten::depthwise_conv2d_ext_backward"):
        for key in ("CPU", "Meta", "Autograd"):
            assert has(name, key)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_python_binding_is_a_builtin_like_upstreams(name: str) -> None:
    """torch.<op> is the code generator's builtin, with its own signature in errors."""
    function = getattr(torch, name)
    assert type(function) is type(torch.conv2d)
    assert function is getattr(torch._C._VariableFunctions, name)
    with pytest.raises(TypeError, match=rf"{name}\(\)"):
        function("no tensor")


def test_gdh_is_a_method_and_the_others_are_not() -> None:
    """As `variants` says."""
    assert type(torch.Tensor.gdh) is type(torch.Tensor.ravel)
    assert not hasattr(torch.Tensor, "gdh_copy")
    assert not hasattr(torch.Tensor, "depthwise_conv2d_ext")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_function_sees_the_call(name: str) -> None:
    """__torch_function__ of an argument and of a mode, and the list that upstream keeps of them."""

    class Noted(Tensor):
        seen: ClassVar[list[object]] = []

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> str:
            cls.seen.append(func)
            return "handled"

    x = torch.randn(1, 3, 7, 6).as_subclass(Noted)
    function = getattr(torch, name)
    arguments = (x, torch.randn(6, 1, 3, 2)) if name == "depthwise_conv2d_ext" else (x,)
    Noted.seen.clear()
    assert function(*arguments) == "handled"
    assert Noted.seen == [function]
    if name == "gdh":
        Noted.seen.clear()
        assert x.gdh() == "handled"
        assert Noted.seen == [torch.Tensor.gdh]

    table = torch.overrides.get_testing_overrides()
    assert function in table
    assert next(iter(inspect.signature(table[function]).parameters)) == "input"
    assert function in torch.overrides.get_overridable_functions()[torch]


def test_torch_dispatch_sees_the_operators() -> None:
    """A composite is seen as its parts, the others as themselves."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    x, w, b = make_inputs(CASE, dtype=torch.float32)
    with Recorder() as recorder:
        torch.depthwise_conv2d_ext(x.requires_grad_(), w, b).sum().backward()
        x.detach().gdh()
        x.detach().mT.gdh()
    for name in ("depthwise_conv2d_ext", "depthwise_conv2d_ext_backward", "view", "gdh_copy"):
        assert f"aten.{name}.default" in recorder.names


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_whole_and_agrees_with_eager(
    dynamic: bool, memory_format: torch.memory_format, device: str
) -> None:
    """fullgraph=True, forward and backward; dynamic shapes without a second compilation."""
    torch._dynamo.reset()
    module = Block().to(device)
    compiles = 0

    def backend(graph: torch.fx.GraphModule, inputs: list) -> object:
        nonlocal compiles
        compiles += 1
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    compiled = torch.compile(module, fullgraph=True, backend=backend, dynamic=dynamic)
    for batch, height, width in ((2, 9, 8), (3, 11, 7), (5, 12, 14))[: 3 if dynamic else 1]:
        x = torch.randn(batch, 3, height, width, device=device)
        x = x.contiguous(memory_format=memory_format)
        given = [x.clone().requires_grad_() for _ in range(2)]
        results = [f(t) for f, t in zip((module, compiled), given, strict=True)]
        torch.testing.assert_close(results[1], results[0])
        gradients = [
            torch.autograd.grad(y.square().sum(), (t, *module.parameters()))
            for y, t in zip(results, given, strict=True)
        ]
        torch.testing.assert_close(gradients[1], gradients[0])
        assert [g.stride() for g in gradients[1]] == [g.stride() for g in gradients[0]]
    assert compiles == 1


def test_inductor_runs_it(device: str) -> None:
    """The default backend, which calls operators that it does not generate itself."""
    torch._dynamo.reset()

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.depthwise_conv2d_ext(x, w, None, 2, 1)
        return y.gdh(), torch.gdh_copy(y.transpose(2, 3))

    x = torch.randn(2, 3, 9, 8, device=device)
    w = torch.randn(3, 1, 3, 3, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        actual = torch.compile(function, fullgraph=True)(x, w)
    torch.testing.assert_close(actual, function(x, w))


def test_exports_with_a_dynamic_batch() -> None:
    """torch.export keeps the operators as nodes and the batch size open."""
    module = Block()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(
        module, (torch.randn(4, 3, 9, 8),), dynamic_shapes={"x": {0: batch}}
    )
    targets = {str(node.target) for node in program.graph.nodes}
    assert "aten.depthwise_conv2d_ext.default" in targets
    x = torch.randn(7, 3, 9, 8)
    torch.testing.assert_close(program.module()(x), module(x))


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("batched", [True, False])
def test_fake_tensors_have_the_kernels_strides(
    memory_format: torch.memory_format, symbolic: bool, batched: bool, device: str
) -> None:
    """Forward and every gradient, with sizes known and symbolic."""
    x, w, b = make_inputs(CASE, device=device, dtype=torch.float32, memory_format=memory_format)
    x = x if batched else x[0]

    def run(x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
        y = torch.depthwise_conv2d_ext(x, w, b, *CASE.window)
        mask = (True, True, True)
        return [y, *aten.depthwise_conv2d_ext_backward(y, x, w, *CASE.window, mask), x.gdh()]

    mode = FakeTensorMode(shape_env=ShapeEnv() if symbolic else None)
    with mode:
        fakes = run(*(mode.from_tensor(t, static_shapes=not symbolic) for t in (x, w, b)))
    for fake, real in zip(fakes, run(x, w, b), strict=True):
        assert tuple(map(int, fake.shape)) == real.shape
        assert tuple(map(int, fake.stride())) == real.stride()
        assert fake.dtype == real.dtype
        assert fake.device == real.device


def test_functionalization_keeps_aliases_and_values() -> None:
    """A write through gdh's view reaches its base; a write to a copy does not."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.clone()
        y.gdh().add_(1)
        z = x.t().clone()
        z.mT.gdh().mul_(5)
        return y, z

    x = torch.randn(3, 4)
    torch.testing.assert_close(torch.func.functionalize(function)(x), function(x))
    weight = torch.randn(3, 1, 2, 2)
    image = torch.randn(1, 3, 4, 5)

    def convolve(x: Tensor) -> Tensor:
        y = x.clone()
        y.gdh()[0] = 3
        return torch.depthwise_conv2d_ext(y, weight)

    torch.testing.assert_close(torch.func.functionalize(convolve)(image), convolve(image))


@pytest.mark.usefixtures("no_vmap_fallback")
def test_functional_transforms_compose() -> None:
    """grad, jvp, hessian of torch.func."""
    x, w, _ = make_inputs(Case(1, 2, 1, (3, 4), (2, 2)))

    def loss(f: object, x: Tensor, w: Tensor) -> Tensor:
        return f(x, w).pow(3).sum()  # type: ignore[operator]

    def reference(x: Tensor, w: Tensor) -> Tensor:
        return nn.functional.conv2d(x, w, groups=2)

    for transform in (torch.func.grad, torch.func.hessian):
        actual = transform(loss, argnums=2)(torch.depthwise_conv2d_ext, x, w)
        torch.testing.assert_close(actual, transform(loss, argnums=2)(reference, x, w))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("how", ["script", "trace"])
def test_torchscript_runs_saves_and_loads(how: str) -> None:
    """Scripted by name, traced by call; the graph holds the operators."""
    module = Block()
    x = torch.randn(2, 3, 9, 8)
    made = torch.jit.script(module) if how == "script" else torch.jit.trace(module, x)
    assert "aten::depthwise_conv2d_ext" in str(made.graph)
    assert "aten::gdh" in str(made.graph)
    file = io.BytesIO()
    torch.jit.save(made, file)
    file.seek(0)
    torch.testing.assert_close(torch.jit.load(file)(x), module(x))


def test_symbolic_trace_keeps_the_calls() -> None:
    """torch.fx sees functions and the method."""
    traced = torch.fx.symbolic_trace(Block())
    targets = [node.target for node in traced.graph.nodes]
    assert torch.depthwise_conv2d_ext in targets
    assert torch.gdh in targets
    assert "gdh" in targets
    x = torch.randn(2, 3, 9, 8)
    torch.testing.assert_close(traced(x), traced(x.clone()))


def test_pickle_and_deepcopy() -> None:
    """Of a module that uses the operators, and of the functions themselves."""
    module = Block()
    x = torch.randn(2, 3, 9, 8)
    for clone in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(clone(x), module(x))
    assert pickle.loads(pickle.dumps(torch.gdh)) is torch.gdh


def test_profiler_names_the_operators() -> None:
    """aten::<name>, forward and backward."""
    x = torch.randn(1, 3, 7, 6, requires_grad=True)
    w = torch.randn(3, 1, 3, 3)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.depthwise_conv2d_ext(x, w).gdh().sum().backward()
    names = {event.key for event in profile.key_averages()}
    assert {
        "aten::gdh",
        "aten::depthwise_conv2d_ext",
        "aten::depthwise_conv2d_ext_backward",
    } < names


@pytest.mark.parametrize("name", FUNCTIONS)
def test_dynamo_knows_the_function(name: str) -> None:
    """The name stands in trace_rules, without which fullgraph=True breaks."""
    from torch._dynamo import trace_rules

    rule = trace_rules.lookup(getattr(torch, name))
    assert rule is trace_rules.lookup(torch.conv2d)


def test_type_stubs_name_the_operators() -> None:
    """What editors and type checkers read: torch's own stubs, or those of an overlay."""
    site = Path(torch.__file__).parents[1]
    stubs = next(root / "_C" for root in (site / "torch-stubs", site / "torch") if root.is_dir())
    functions = (stubs / "_VariableFunctions.pyi").read_text(encoding="utf-8")
    assert all(f"def {name}(" in functions for name in FUNCTIONS)
    assert "def gdh(self) -> Tensor" in (stubs / "__init__.pyi").read_text(encoding="utf-8")


class Defaulted(nn.Module):
    """A Scalar that only a keyword can give, and that none does."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Twice x, and y."""
        return torch.axpy_ext(x, y)


def test_a_package_has_the_scalar_that_no_keyword_gives(tmp_path: Path) -> None:
    """pytorch/pytorch#189189: the executor and the compiled code disagreed about it."""
    given = torch.randn(4, 5), torch.randn(4, 5)
    program = torch.export.export(Defaulted(), given)
    path = str(tmp_path / "defaulted.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=path)
    torch.testing.assert_close(torch._inductor.aoti_load_package(path)(*given), Defaulted()(*given))
