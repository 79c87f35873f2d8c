"""convert_depthwise on timm's models: conversion, checkpoints, outputs, gradients and programs."""

from __future__ import annotations

import copy
import io
import pickle
from collections import Counter
from collections.abc import Callable, Iterable

import pytest
import torch
from judging import complaints, errors, results, together
from subjects import MODELS, converted, depthwise_names, images, ours, stock
from torch import Tensor, nn

FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
OPERATOR = torch.ops.aten.depthwise_conv2d_ext.default

every_model = pytest.mark.parametrize("name", MODELS)
every_format = pytest.mark.parametrize("layout", FORMATS)


@every_model
def test_every_depthwise_convolution_is_converted_and_nothing_else(name: str) -> None:
    plain = stock(name)
    model = converted(plain)
    assert ours(model).keys() == depthwise_names(plain)
    assert len(ours(model)) == MODELS[name]
    kinds = {n: type(m) for n, m in plain.named_modules()}
    kinds |= dict.fromkeys(ours(model), nn.DepthwiseConv2dExt)
    assert {n: type(m) for n, m in model.named_modules()} == kinds


def test_convolutions_that_pad_in_their_own_way_are_left_alone() -> None:
    plain = stock("tf_efficientnet_b0")  # four of its sixteen are a subclass, with strides
    model = converted(plain)
    own = {n for n in depthwise_names(plain) if type(plain.get_submodule(n)) is not nn.Conv2d}
    assert len(own) == 4 and len(ours(model)) == 12
    assert ours(model).keys() == depthwise_names(plain) - own
    x = images().double()
    torch.testing.assert_close(model.double().eval()(x), plain.double().eval()(x))


@every_model
def test_checkpoints_go_both_ways(name: str) -> None:
    plain, model = stock(name), converted(stock(name))
    for source, target in ((plain, model), (model, plain)):
        with torch.no_grad():
            for value in source.state_dict().values():
                value.copy_(torch.randn(value.shape) if value.is_floating_point() else value + 1)
        file = io.BytesIO()
        torch.save(source.state_dict(), file)
        file.seek(0)
        target.load_state_dict(torch.load(file, weights_only=True), strict=True)
        assert list(target.state_dict()) == list(source.state_dict())
        for key, value in source.state_dict().items():
            assert torch.equal(target.state_dict()[key], value), key


def spied(model: nn.Module, names: Iterable[str]) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """What gets type and strides of each output of these modules."""
    seen: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for name in names:
        model.get_submodule(name).register_forward_hook(
            lambda _module, _inputs, output, name=name: seen.update(
                {name: (output.dtype, output.stride())}
            )
        )
    return seen


def judged(plain: nn.Module, model: nn.Module, layout: str, autocast: bool = False) -> list[str]:
    """Complaints about the model's errors beside those of plain, on three draws of images."""
    exact_model = copy.deepcopy(plain).double()
    mine: list[Tensor] = []
    theirs: list[Tensor] = []
    for _ in range(3):
        x = images().to(memory_format=FORMATS[layout])
        exact = results(exact_model, x.double())
        for m, found in ((model, mine), (plain, theirs)):
            context = torch.autocast("cpu", torch.bfloat16, enabled=autocast)
            found.append(errors(results(m, x, context), exact))
    return list(complaints(together(mine), together(theirs)))


# ConvNeXt has nothing that training changes.
MODES = [(name, training) for name in MODELS for training in (False, True)
         if not (training and name == "convnext_tiny")]  # fmt: skip


@every_format
@pytest.mark.parametrize(("name", "training"), MODES)
def test_outputs_and_gradients_are_as_near_to_the_exact_ones(
    name: str, training: bool, layout: str
) -> None:
    plain = stock(name, smooth=True).train(training).to(memory_format=FORMATS[layout])
    model = converted(plain)
    names = depthwise_names(plain)
    expected, seen = spied(plain, names), spied(model, names)
    assert not judged(plain, model, layout)
    assert len(seen) == MODELS[name] and seen == expected


@every_format
@pytest.mark.parametrize(("name", "training"), MODES)
def test_in_double_it_is_the_same_model(name: str, training: bool, layout: str) -> None:
    plain = stock(name).double().train(training).to(memory_format=FORMATS[layout])
    model = converted(plain)
    x = images().double().to(memory_format=FORMATS[layout])
    different = errors(results(model, x), results(plain, x))
    assert max(different.values()) < 1e-9
    # what was learned of the images on the way: the statistics of normalizations
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[key], value, rtol=1e-9, atol=1e-9)


def test_the_comparison_sees_weights_that_are_rounded_to_half() -> None:
    plain = stock("mobilenetv2_100", smooth=True).eval()
    model = converted(plain)
    assert not judged(plain, model, "nchw")
    with torch.no_grad():
        weight = ours(model)["blocks.5.1.conv_dw"].weight
        weight.copy_(weight.half())
    assert any(text.startswith("output") for text in judged(plain, model, "nchw"))


@every_format
@every_model
def test_autocast_computes_in_bfloat16_as_exactly_as_conv2d(name: str, layout: str) -> None:
    plain = stock(name, smooth=True).eval().to(memory_format=FORMATS[layout])
    model = converted(plain)
    names = depthwise_names(plain)
    expected, seen = spied(plain, names), spied(model, names)
    assert not judged(plain, model, layout, autocast=True)
    assert seen == expected and {dtype for dtype, _ in seen.values()} == {torch.bfloat16}


def close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Equal but for roundings of another order of operations, by the median gradient at least."""
    different = {n: e for n, e in errors(found, expected, zero=1).items() if not e < 1e-3}
    assert not different


def calls(graph: torch.fx.Graph) -> int:
    """How often a graph calls the operator."""
    return Counter(node.target for node in graph.nodes)[OPERATOR]


@every_model
def test_a_converted_model_compiles_whole(name: str) -> None:
    model, x = converted(stock(name, smooth=True)).train(), images()
    found = []

    def counting(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        found.append(sum("depthwise_conv2d_ext" in str(n.target) for n in graph.graph.nodes))
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    expected = results(copy.deepcopy(model), x)
    model.compile(fullgraph=True, backend=counting)
    close(results(model, x), expected)
    assert found == [MODELS[name]]


@every_format
def test_a_converted_model_is_trained_by_inductor(layout: str) -> None:
    model = converted(stock("mobilenetv3_small_100", smooth=True)).train()
    model, x = model.to(memory_format=FORMATS[layout]), images()
    x = x.to(memory_format=FORMATS[layout])
    expected = results(copy.deepcopy(model), x)
    model.compile(fullgraph=True)
    close(results(model, x), expected)


@every_model
def test_an_exported_model_runs_after_saving_with_other_batches(name: str) -> None:
    model, x = converted(stock(name)).eval(), images()
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))
    assert calls(program.graph) == MODELS[name]
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file)
    assert calls(loaded.run_decompositions().graph) == MODELS[name]
    for size in (2, 5):
        x = images(size)
        with torch.no_grad():
            torch.testing.assert_close(loaded.module()(x), model(x))


@every_model
def test_saved_pickled_and_copied_models_are_models_of_their_own(name: str) -> None:
    model, x = converted(stock(name)).eval(), images()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = {
        "save": torch.load(file, weights_only=False),
        "pickle": pickle.loads(pickle.dumps(model)),
        "deepcopy": copy.deepcopy(model),
    }
    with torch.no_grad():
        expected = model(x)
        for how, other in copies.items():
            assert len(ours(other)) == MODELS[name], how
            assert torch.equal(other(x), expected), how
            for parameter in other.parameters():
                parameter.zero_()
        assert torch.equal(model(x), expected)
