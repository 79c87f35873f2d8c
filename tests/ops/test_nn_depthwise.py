"""nn.DepthwiseConv2dExt, its functional and convert_depthwise against nn.Conv2d."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import convert_depthwise

# channels, multiplier, input size, the arguments of both modules; height and width differ
CASES: list[tuple[int, int, tuple[int, int], dict[str, Any]]] = [
    (4, 1, (9, 7), {"kernel_size": 3}),
    (4, 2, (9, 7), {"kernel_size": (3, 5), "padding": (1, 2), "bias": True}),
    (3, 1, (11, 8), {"kernel_size": (2, 3), "stride": (2, 3), "dilation": (3, 1), "padding": 1}),
    (5, 3, (6, 9), {"kernel_size": 3, "padding": "valid", "bias": True}),
    (5, 1, (6, 9), {"kernel_size": (2, 4), "padding": "same", "dilation": (1, 3)}),
    (5, 2, (6, 9), {"kernel_size": (3, 5), "padding": "same"}),
    (2, 1, (8, 9), {"kernel_size": 3, "padding": (1, 2), "padding_mode": "reflect"}),
    (2, 2, (8, 9), {"kernel_size": (3, 4), "padding": "same", "padding_mode": "circular"}),
    (2, 1, (8, 9), {"kernel_size": 5, "padding": 2, "padding_mode": "replicate", "bias": True}),
]


def modules(channels: int, multiplier: int, **settings: Any) -> tuple[nn.Conv2d, nn.Module]:
    """Upstream's convolution and ours, with the same parameters."""
    ours = nn.DepthwiseConv2dExt(channels, multiplier=multiplier, **settings)
    settings.setdefault("bias", False)
    conv = nn.Conv2d(channels, channels * multiplier, groups=channels, **settings)
    ours.load_state_dict(conv.state_dict(), strict=True)
    return conv, ours


def results(module: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """The output and the gradients of input and parameters."""
    x = x.detach().clone().requires_grad_()
    output = module(x)
    weights = [x, *module.parameters()] if isinstance(module, nn.Module) else [x]
    seed = torch.sin(torch.arange(output.numel(), device=x.device, dtype=x.dtype))
    return [output, *torch.autograd.grad(output, weights, seed.view_as(output))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"c{case[0]}m{case[1]}-{case[3]}")
@pytest.mark.parametrize("batched", [True, False], ids=["batch", "single"])
def test_it_computes_what_conv2d_computes(case: Any, batched: bool, device: str) -> None:
    channels, multiplier, size, settings = case
    conv, ours = (m.double().to(device) for m in modules(channels, multiplier, **settings))
    if settings.get("padding_mode", "zeros") != "zeros" and not batched:
        x = torch.randn(channels, *size, dtype=torch.double, device=device)
    else:
        x = torch.randn(*[3] * batched, channels, *size, dtype=torch.double, device=device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using padding='same'")
        expected = results(conv, x)
    torch.testing.assert_close(results(ours, x), expected)


def test_state_dicts_load_into_each_other_and_the_initialization_is_the_same() -> None:
    torch.manual_seed(3)
    conv = nn.Conv2d(6, 12, (3, 5), groups=6)
    torch.manual_seed(3)
    ours = nn.DepthwiseConv2dExt(6, (3, 5), multiplier=2, bias=True)
    assert list(ours.state_dict()) == list(conv.state_dict()) == ["weight", "bias"]
    for name, value in conv.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)
    conv.load_state_dict(ours.state_dict(), strict=True)


def test_the_defaults_are_those_of_the_walkthrough() -> None:
    module = nn.DepthwiseConv2dExt(8)
    assert module.kernel_size == (3, 3) and module.stride == (1, 1) and module.padding == (0, 0)
    assert module.multiplier == 1 and module.bias is None and module.weight.shape == (8, 1, 3, 3)
    meta = nn.DepthwiseConv2dExt(8, device="meta", dtype=torch.bfloat16)
    assert meta.weight.is_meta and meta.weight.dtype is torch.bfloat16


def test_repr_says_what_was_asked_for_and_can_be_evaluated() -> None:
    text = (
        "DepthwiseConv2dExt(16, kernel_size=(3, 5), stride=(2, 1), padding=(1, 2), multiplier=2, "
        "bias=False)"
    )
    module = nn.DepthwiseConv2dExt(16, (3, 5), (2, 1), (1, 2), multiplier=2)
    assert repr(module) == text
    assert repr(eval(text, {"DepthwiseConv2dExt": nn.DepthwiseConv2dExt})) == text
    same = nn.DepthwiseConv2dExt(4, 5, padding="same", dilation=2, padding_mode="circular")
    for part in ("padding='same'", "dilation=(2, 2)", "padding_mode=circular"):
        assert part in repr(same)


def test_copies_and_pickles_compute_the_same() -> None:
    module = nn.DepthwiseConv2dExt(4, padding="same", bias=True)
    x = torch.randn(2, 4, 5, 6)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x), module(x)) and other.weight is not module.weight


@pytest.mark.parametrize("padding", [(1, 2), "same", "valid"], ids=str)
def test_it_can_be_scripted_traced_compiled_and_exported(padding: Any) -> None:
    torch._dynamo.reset()  # what other tests compiled counts towards a limit
    module = nn.DepthwiseConv2dExt(4, (3, 4), padding=padding, bias=True)
    x = torch.randn(2, 4, 8, 9)
    expected = module(x)
    made = {
        "script": torch.jit.script(module),
        "trace": torch.jit.trace(module, x),
        "compile": torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True),
        "export": torch.export.export(module, (x,)).module(),
    }
    for name, other in made.items():
        torch.testing.assert_close(other(x), expected, msg=name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"channels": 0}, "channels to be positive, but got 0"),
        ({"channels": 4, "multiplier": 0}, "multiplier to be positive, but got 0"),
        ({"channels": 4, "padding": "sam"}, "Invalid padding string"),
        ({"channels": 4, "padding": "same", "stride": 2}, "strided"),
        ({"channels": 4, "padding_mode": "mirror"}, "padding_mode"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nn.DepthwiseConv2dExt(**arguments)


def test_the_functional_takes_strings_and_refuses_what_conv2d_refuses() -> None:
    x, w = torch.randn(2, 3, 7, 8, dtype=torch.double), torch.randn(6, 1, 4, 3, dtype=torch.double)
    for padding in ("same", "valid", (2, 1), 1):
        for dilation in (1, (2, 1)):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Using padding='same'")
                expected = functional.conv2d(x, w, None, 1, padding, dilation, 3)
            found = functional.depthwise_conv2d_ext(x, w, None, 1, padding, dilation)
            torch.testing.assert_close(found, expected)
    with pytest.raises(RuntimeError, match="'same', 'valid' or numbers, but got 'full'"):
        functional.depthwise_conv2d_ext(x, w, padding="full")
    for stride in (2, (1, 2)):
        with pytest.raises(RuntimeError, match="needs a stride of 1, but got"):
            functional.depthwise_conv2d_ext(x, w, stride=stride, padding="same")


class Logged(Tensor):
    """A tensor that writes down what is called with it."""

    seen: list[Any] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("name", ["depthwise_conv2d_ext", "lltm_cell"])
def test_functionals_say_that_they_are_public(name: str) -> None:
    assert getattr(functional, name).__module__ == "torch.nn.functional"


def test_the_functional_honours_torch_function_and_is_known_to_overrides() -> None:
    Logged.seen.clear()
    x = torch.randn(1, 2, 4, 5).as_subclass(Logged)
    functional.depthwise_conv2d_ext(x, torch.randn(2, 1, 3, 3), padding="same")
    assert Logged.seen[0] is functional.depthwise_conv2d_ext
    assert functional.depthwise_conv2d_ext in torch.overrides.get_testing_overrides()
    assert functional.lltm_cell in torch.overrides.get_testing_overrides()


def test_from_conv2d_shares_parameters_and_keeps_mode_and_hooks() -> None:
    conv = nn.Conv2d(4, 8, (3, 5), padding="same", groups=4).eval()
    called = []
    conv.register_forward_hook(lambda *_: called.append(1))
    ours = nn.DepthwiseConv2dExt.from_conv2d(conv)
    assert ours.weight is conv.weight and ours.bias is conv.bias
    assert ours.multiplier == 2 and ours.channels == 4 and not ours.training
    x = torch.randn(2, 4, 6, 7)
    torch.testing.assert_close(ours(x), conv(x))
    assert len(called) == 2
    ours.train()
    ours.register_parameter("more", None)
    assert not conv.training and "more" not in conv._parameters


def test_from_conv2d_refuses_what_is_not_depthwise() -> None:
    make = nn.DepthwiseConv2dExt.from_conv2d
    with pytest.raises(TypeError, match="Linear"):
        make(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="groups=2 and in_channels=4"):
        make(nn.Conv2d(4, 4, 3, groups=2))
    with pytest.raises(TypeError, match="lazy"):
        make(nn.LazyConv2d(4, 3))
    with pytest.raises(ValueError, match="complex64"):
        make(nn.Conv2d(4, 4, 3, groups=4, dtype=torch.complex64))
    parametrized = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3, groups=4))
    with pytest.raises(TypeError, match="parametrization"):
        make(parametrized)


class Block(nn.Module):
    """The inverted bottleneck of mobile networks."""

    def __init__(self, width: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner = 3 * width
        self.expand = nn.Sequential(nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner))
        self.depth = nn.Conv2d(inner, inner, kernel, stride, kernel // 2, groups=inner, bias=False)
        self.norm = nn.BatchNorm2d(inner)
        self.project = nn.Conv2d(inner, width, 1)
        self.skip = stride == 1

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu6(self.norm(self.depth(functional.relu6(self.expand(x)))))
        out = self.project(inner)
        return x + out if self.skip else out


def network() -> nn.Sequential:
    torch.manual_seed(7)
    blocks = [Block(8, 3, 1), Block(8, 5, 2), Block(8, 7, 1)]
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )


def test_a_converted_model_has_the_same_outputs_gradients_and_checkpoints(device: str) -> None:
    plain, converted = network().double().to(device), network().double().to(device)
    assert convert_depthwise(converted) is converted
    kinds = [type(m).__name__ for m in converted.modules()]
    assert kinds.count("DepthwiseConv2dExt") == 3 and kinds.count("Conv2d") == 7
    x = torch.randn(2, 3, 20, 26, dtype=torch.double, device=device)
    torch.testing.assert_close(results(converted, x), results(plain, x))
    assert list(converted.state_dict()) == list(plain.state_dict())
    converted.load_state_dict(plain.state_dict(), strict=True)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    generator = torch.Generator().manual_seed(11)
    losses = []
    x = torch.randn(8, 3, 16, 20, generator=generator, dtype=torch.double)
    target = torch.arange(8).remainder(5)
    for _ in range(12):
        loss = functional.cross_entropy(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_model_converted_under_its_optimizer_trains_the_same() -> None:
    plain, converted = network().double(), network().double()
    optimizers = [torch.optim.SGD(m.parameters(), 0.05, momentum=0.9) for m in (plain, converted)]
    convert_depthwise(converted)
    expected, found = train(plain, optimizers[0]), train(converted, optimizers[1])
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected))
    assert expected[-1] < expected[0]


def test_a_converted_model_compiles_and_exports_without_a_graph_break() -> None:
    torch._dynamo.reset()
    model = convert_depthwise(network()).eval()
    x = torch.randn(2, 3, 16, 20)
    expected = model(x)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected)
    exported = torch.export.export(model, (x,))
    torch.testing.assert_close(exported.module()(x), expected)
    targets = [str(node.target) for node in exported.graph.nodes]
    assert sum("depthwise_conv2d_ext" in target for target in targets) == 3


def test_convert_depthwise_leaves_what_is_not_its_own() -> None:
    class Special(nn.Conv2d):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) + 1

    shared = nn.Conv2d(4, 4, 3, groups=4)
    model = nn.ModuleDict(
        {
            "special": Special(4, 4, 3, groups=4),
            "grouped": nn.Conv2d(4, 4, 3, groups=2),
            "plain": nn.Conv2d(1, 4, 3),
            "complex": nn.Conv2d(4, 4, 3, groups=4, dtype=torch.complex64),
            "normed": nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3, groups=4)),
            "one": shared,
            "other": nn.Sequential(shared),
        }
    )
    before = {name: type(module) for name, module in model.items()}
    convert_depthwise(model)
    changed = [name for name, module in model.items() if type(module) is not before[name]]
    assert changed == ["one"]
    assert model["one"] is model["other"][0], "a module in two places stays one"
    assert convert_depthwise(model)["one"] is model["one"], "nothing to do the second time"
    assert type(convert_depthwise(nn.Conv2d(4, 4, 3, groups=4))) is nn.DepthwiseConv2dExt
    with pytest.raises(TypeError, match="ScriptModule"):
        convert_depthwise(torch.jit.script(nn.Sequential(nn.Conv2d(4, 4, 3, groups=4))))


def test_a_batch_norm_can_be_fused_into_it() -> None:
    conv, norm = nn.DepthwiseConv2dExt(4, padding=1), nn.BatchNorm2d(4)
    norm(torch.randn(8, 4, 3, 3))
    fused = nn.utils.fuse_conv_bn_eval(conv.eval(), norm.eval())
    x = torch.randn(2, 4, 5, 6)
    assert type(fused) is nn.DepthwiseConv2dExt
    torch.testing.assert_close(fused(x), norm(conv(x)))
