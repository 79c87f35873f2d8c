"""nn.Conv2d's module tests on DepthwiseConv2dExt, by PyTorch's own machinery for modules.

Each case is a Conv2d with groups=C: what that module promises (strings of padding, padding modes,
unbatched input, memory formats, copies, transfers, two orders of gradients) is asked of ours.
"""

from __future__ import annotations

import copy
import io
import pickle
from itertools import product

import pytest

pytest.importorskip("expecttest", reason="torch.testing._internal needs expecttest")

import torch
from module_cases import INFO, as_conv2d
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db, modules
from torch.testing._internal.common_utils import (
    TestCase,
    freeze_rng_state,
    gradcheck,
    gradgradcheck,
)

DOUBLE = [torch.float64]


class TestDepthwiseModule(TestCase):
    """Instantiated for each device type below."""

    def each(
        self, info: ModuleInfo, device: str, dtype: torch.dtype, training: bool, grad: bool = False
    ) -> list[tuple[nn.Module, Tensor, ModuleInput]]:
        """A module and its input for each of the entry's cases."""
        cases = info.module_inputs_func(
            info, device=device, dtype=dtype, requires_grad=grad, training=training
        )
        made = []
        for case in cases:
            built = case.constructor_input
            module = info.module_cls(*built.args, **built.kwargs, device=device, dtype=dtype)
            made.append((module.train(training), case.forward_input.args[0], case))
        return made

    def test_conv2d_still_has_an_entry(self) -> None:
        """The one that these cases were taken from."""
        self.assertIn(nn.Conv2d, {info.module_cls for info in module_db})

    @modules([INFO])
    def test_forward_is_that_of_conv2d(
        self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool
    ) -> None:
        """And leaves its input alone."""
        for module, x, case in self.each(module_info, device, dtype, training):
            before = x.clone()
            # rounding of 16 bits is relative to the terms, whose sum may be near 0
            loose = {"atol": 8 * torch.finfo(dtype).eps, "rtol": 4 * torch.finfo(dtype).eps}
            expected = case.reference_fn(module, x)
            self.assertEqual(module(x), expected, msg=case.desc, **loose)
            self.assertEqual(x, before)

    @modules([INFO], allowed_dtypes=DOUBLE)
    def test_first_and_second_order_gradients(
        self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool
    ) -> None:
        """Of input and parameters together."""
        for module, x, _ in self.each(module_info, device, dtype, training, grad=True):
            parameters = dict(module.named_parameters())

            def call(
                x: Tensor,
                *values: Tensor,
                module: torch.nn.Module = module,
                names: tuple[str, ...] = tuple(parameters),
            ) -> Tensor:
                given = dict(zip(names, values, strict=True))
                return torch.func.functional_call(module, given, (x,))

            inputs = (x, *parameters.values())
            # upstream's padding of other modes adds up gradients in any order on CUDA
            order = 0.0 if module.padding_mode == "zeros" else 1e-12
            self.assertTrue(gradcheck(call, inputs, check_forward_ad=True, nondet_tol=order))
            self.assertTrue(gradgradcheck(call, inputs, nondet_tol=order))

    @modules([INFO], allowed_dtypes=[torch.float32, torch.float64])
    def test_gradients_are_those_of_conv2d(
        self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool
    ) -> None:
        """Also for input and output gradients that have gaps."""
        # A weight's gradient is a sum over images and pixels, in whatever order each side takes.
        close = {} if dtype is torch.float64 else {"atol": 1e-4, "rtol": 1e-4}
        for module, x, case in self.each(module_info, device, dtype, training, grad=True):
            reference = as_conv2d(module)
            gaps = torch.stack([x.detach(), x.detach()], -1)[..., 0].requires_grad_()
            grad = torch.randn(*module(x).shape, 2, device=device, dtype=dtype)[..., 1]
            expected = torch.autograd.grad(reference(x), (x, *reference.parameters()), grad)
            for given in (x, gaps):
                self.assertEqual(module(given), reference(x), msg=case.desc, **close)
                actual = torch.autograd.grad(module(given), (given, *module.parameters()), grad)
                self.assertEqual(actual, expected, msg=case.desc, **close)

    @modules([INFO], allowed_dtypes=[torch.float32])
    def test_memory_format_goes_through(
        self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool
    ) -> None:
        """channels_last input gives channels_last output, whatever the weight's format."""
        for module, x, case in self.each(module_info, device, dtype, training):
            # circular padding, an operator of upstream's, has no memory format
            if x.dim() != 4 or module.padding_mode != "zeros":
                continue
            expected = module(x)
            for inside, outside in product(
                (torch.contiguous_format, torch.channels_last), repeat=2
            ):
                actual = copy.deepcopy(module).to(memory_format=inside)(
                    x.contiguous(memory_format=outside)
                )
                self.assertEqual(actual, expected, msg=case.desc)
                self.assertTrue(actual.is_contiguous(memory_format=outside))

    @modules([INFO], allowed_dtypes=[torch.float32])
    def test_copies_print_and_compute_alike(
        self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool
    ) -> None:
        """deepcopy, pickle, torch.save, a state_dict of Conv2d's; repr names what was given."""
        for module, x, case in self.each(module_info, device, dtype, training):
            expected = module(x)
            file = io.BytesIO()
            torch.save(module, file)
            file.seek(0)
            copies = [
                copy.deepcopy(module),
                pickle.loads(pickle.dumps(module)),
                torch.load(file, weights_only=False),
            ]
            built = case.constructor_input
            fresh = nn.DepthwiseConv2dExt(*built.args, **built.kwargs, device=device, dtype=dtype)
            fresh.load_state_dict(as_conv2d(module).state_dict())
            for other in (*copies, fresh):
                self.assertEqual(other(x), expected)
                self.assertEqual(repr(other), repr(module))
            for name, value in built.kwargs.items():
                if name in ("multiplier", "padding_mode", "bias"):
                    self.assertIn(f"{name}={value}", repr(module))

    @modules([INFO], allowed_dtypes=[torch.float32])
    def test_made_on_the_device_and_in_the_dtype_that_is_asked_for(
        self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool
    ) -> None:
        """By arguments, by a context, by to() and to_empty(), on meta; with Conv2d's numbers."""
        for module, x, case in self.each(module_info, device, dtype, training):
            built = case.constructor_input
            with torch.device("meta"):
                bare = nn.DepthwiseConv2dExt(*built.args, **built.kwargs)
            self.assertTrue(all(p.is_meta for p in bare.parameters()))
            self.assertEqual(bare(x.to("meta")).shape, module(x).shape)
            bare.to_empty(device=device).load_state_dict(module.state_dict())
            self.assertEqual(bare(x), module(x))
            self.assertEqual(bare.to(torch.float64).weight.dtype, torch.float64)
            with freeze_rng_state():
                ours = nn.DepthwiseConv2dExt(*built.args, **built.kwargs, dtype=torch.float64)
            with freeze_rng_state():
                theirs = as_fresh_conv2d(ours)
            self.assertEqual(dict(ours.named_parameters()), dict(theirs.named_parameters()))

    @modules([INFO], allowed_dtypes=[torch.float32])
    def test_conversions_keep_parameters_and_gradients(
        self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool
    ) -> None:
        """To double, to the CPU and back; also where torch swaps what a parameter holds."""
        swapping = torch.__future__.get_swap_module_params_on_conversion()
        for swap in (False, True):
            self.addCleanup(torch.__future__.set_swap_module_params_on_conversion, swapping)
            torch.__future__.set_swap_module_params_on_conversion(swap)
            for module, x, _ in self.each(module_info, device, dtype, training):
                expected = module(x)
                expected.sum().backward()
                parameters = dict(module.named_parameters())
                gradients = {name: p.grad for name, p in parameters.items()}
                for step in ({"dtype": torch.float64}, {"dtype": dtype, "device": "cpu"}):
                    module.to(**step)
                self.assertEqual(module(x.cpu()), expected.cpu())
                module.to(device)
                for name, parameter in module.named_parameters():
                    self.assertIs(parameter, parameters[name])
                    self.assertEqual(parameter.grad, gradients[name])
                self.assertEqual(module(x), expected)

    @modules([INFO], allowed_dtypes=[torch.float32])
    def test_training_and_evaluation_are_alike(
        self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool
    ) -> None:
        """There is nothing in it that a mode could change."""
        for module, x, _ in self.each(module_info, device, dtype, training):
            self.assertEqual(module.training, training)
            self.assertEqual(module.train(not training)(x), module.train(training)(x))

    @modules([INFO], allowed_dtypes=[torch.float64])
    def test_what_changes_a_weight_changes_ours_as_that_of_conv2d(
        self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool
    ) -> None:
        """Parametrizations, pruning, and their removal."""
        weight_norm = nn.utils.parametrizations.weight_norm
        for module, x, case in self.each(module_info, device, dtype, training):
            for change, undo in (
                (weight_norm, lambda m: nn.utils.parametrize.remove_parametrizations(m, "weight")),
                (lambda m: prune.l1_unstructured(m, "weight", 0.5),
                 lambda m: prune.remove(m, "weight")),
            ):  # fmt: skip
                ours, theirs = copy.deepcopy(module), as_conv2d(module)
                for each in (ours, theirs):
                    change(each)
                self.assertEqual(ours(x), theirs(x), msg=case.desc)
                undo(ours)
                self.assertEqual(ours(x), theirs(x), msg=case.desc)
                self.assertIs(type(ours), nn.DepthwiseConv2dExt)

    @modules([INFO], allowed_dtypes=[torch.float32])
    def test_without_initialization_it_is_made_of_the_same_shapes(
        self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool
    ) -> None:
        """skip_init, which needs that the constructor takes a device and passes it on."""
        for module, _, case in self.each(module_info, device, dtype, training):
            built = case.constructor_input
            bare = nn.utils.skip_init(
                nn.DepthwiseConv2dExt, *built.args, **built.kwargs, device=device, dtype=dtype
            )
            for name, parameter in bare.named_parameters():
                wanted = module.get_parameter(name)
                self.assertEqual(parameter.shape, wanted.shape)
                self.assertEqual((parameter.device, parameter.dtype), (wanted.device, dtype))


def as_fresh_conv2d(module: nn.DepthwiseConv2dExt) -> nn.Conv2d:
    """Conv2d's own initial numbers for the same settings."""
    return nn.Conv2d(
        module.channels,
        module.channels * module.multiplier,
        module.kernel_size,
        groups=module.channels,
        bias=module.bias is not None,
        dtype=module.weight.dtype,
    )


instantiate_device_type_tests(TestDepthwiseModule, globals(), only_for=("cpu", "cuda"))
