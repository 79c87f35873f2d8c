"""Upstream's own cases of nn.Conv2d and its own test of a module, on DepthwiseConv2dExt.

torch.testing._internal.common_nn has a table of modules and a class that tests one: strided input
and gradients, torch.save, gradcheck and gradgradcheck with batched gradients, changes of dtype and
device. Each entry of the table that makes a Conv2d makes the depthwise module of the same channels
and settings here, groups=C, with as many filters a channel as its outputs ask for.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

pytest.importorskip("expecttest", reason="torch.testing._internal needs expecttest")

from module_cases import as_conv2d, depthwise
from torch import Tensor, nn
from torch.testing._internal import common_nn
from torch.testing._internal.common_nn import NewModuleTest, NNTestCase


def entries() -> dict[str, dict[str, Any]]:
    """The table's Conv2d, by the name that their tests have."""
    # a list until torch 2.12, a function that makes one since
    make = getattr(common_nn, "get_new_module_tests", None)
    found: dict[str, dict[str, Any]] = {}
    for entry in make() if make else common_nn.new_module_tests:
        name = entry.get("fullname") or entry.get("module_name", "")
        if name.split("_")[0] != "Conv2d":
            continue
        described = "_".join(filter(None, [name, entry.get("desc", "")]))
        assert described not in found
        found[described] = entry
    return found


ENTRIES = entries()


class Case(NNTestCase):
    """How upstream's tests run a module: an interface of common_nn.NNTestCase."""

    def _forward(self, module: nn.Module, inputs: Any) -> Tensor:
        return module(*inputs) if isinstance(inputs, tuple) else module(inputs)

    def _backward(
        self,
        module: nn.Module,
        inputs: Any,
        output: Tensor,
        grad_output: Tensor,
        create_graph: bool = False,
    ) -> Any:
        output.backward(grad_output, retain_graph=True, create_graph=create_graph)
        return tuple(i.grad.data for i in inputs) if isinstance(inputs, tuple) else inputs.grad.data

    def _get_parameters(self, module: nn.Module) -> tuple[list[Tensor], list[Tensor | None]]:
        parameters = list(module.parameters())
        return parameters, [p.grad for p in parameters]

    def _zero_grad_parameters(self, module: nn.Module) -> None:
        module.zero_grad(set_to_none=False)


def module_test(name: str) -> NewModuleTest:
    """Upstream's test of an entry, its constructor in our module's place."""
    # neither speaks of the module: upstream's runner reads them
    entry = {k: v for k, v in ENTRIES[name].items() if k not in ("module_name", "fullname", "desc")}
    construct = entry.pop("constructor", None)

    def ours(*args: Any) -> nn.Module:
        with mock.patch.object(nn, "Conv2d", depthwise):
            module = construct(*args) if construct else depthwise(*args)
        assert type(module) is nn.DepthwiseConv2dExt
        return module

    entry.setdefault("reference_fn", lambda x, parameters, module: as_conv2d(module)(x))
    return NewModuleTest(ours, fullname=name, **entry)


def test_the_table_has_upstreams_conv2d() -> None:
    """Where upstream moves its table, no entry would be found and nothing be tested."""
    wanted = {"Conv2d", "Conv2d_strided", "Conv2d_padding", "Conv2d_dilated", "Conv2d_no_bias",
              "Conv2d_groups", "Conv2d_pad_same", "Conv2d_pad_same_dilated", "Conv2d_depthwise",
              "Conv2d_depthwise_with_multiplier", "Conv2d_zero_batch"}  # fmt: skip
    assert wanted <= set(ENTRIES)


@pytest.mark.parametrize("name", ENTRIES)
def test_upstreams_module_test_holds(name: str, device: str) -> None:
    """nn.Conv2d's results; on CUDA the CPU's, gradients of both orders included."""
    test = module_test(name)
    test.test_cuda(Case()) if device == "cuda" else test(Case())
