"""More of PyTorch's own checks of an operator, driven by the additions' OpInfos.

Composite compliance, TorchScript, fake tensors, out=, strides and gradients, decompositions: what
upstream's test_ops.py, test_ops_jit.py and their like ask of each operator, by the same machinery.
"""

from __future__ import annotations

import warnings
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("expecttest", reason="torch.testing._internal needs expecttest")

import torch
from numerics import CASES
from torch._subclasses import CrossRefFakeMode
from torch.testing._internal import common_utils, composite_compliance
from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
from torch.testing._internal.common_jit import JitCommonTestCase, check_against_reference
from torch.testing._internal.common_utils import ProfilingMode, TestCase
from torch.testing._internal.jit_metaprogramming_utils import create_script_fn, create_traced_fn
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.testing._internal.opinfo.definitions.aten_ext import op_db
from torch.utils import _pytree as pytree

F32 = (torch.float32,)
MIXTURES = 8 * CASES  # of wrapped and plain tensors: some milliseconds each
WITH_OUT = [op for op in op_db if op.supports_out]


def arguments(sample: SampleInput) -> tuple[list[Any], dict[str, Any]]:
    """As a call takes them."""
    return [sample.input, *sample.args], dict(sample.kwargs)


def tensors(values: object) -> list[torch.Tensor]:
    """All of a structure."""
    return [t for t in pytree.tree_leaves(values) if isinstance(t, torch.Tensor)]


class TestCompliance(TestCase):
    """What Tensor's subclasses rely on: nothing touches a tensor behind the dispatcher's back."""

    @ops(op_db, allowed_dtypes=F32)
    def test_operator(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Every mixture of wrapped and plain arguments."""
        for sample in op.sample_inputs(device, dtype):
            args, kwargs = arguments(sample)
            composite_compliance.check_with_mode(op, args, kwargs, self.assertEqual)
            composite_compliance.check_all_permutations(op, args, kwargs, self.assertEqual)

    @ops(op_db, allowed_dtypes=F32)
    def test_backward_formula(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Also of every mixture of gradients."""
        for sample in op.sample_inputs(device, dtype, requires_grad=True):
            composite_compliance.check_backward_formula(
                op.get_op(),
                *arguments(sample),
                sample.output_process_fn_grad,
                op.gradcheck_wrapper,
                self.assertEqual,
            )

    @ops(op_db, allowed_dtypes=F32)
    def test_forward_mode_formula(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Of primals and tangents: 4ⁿ of n tensors, so of few samples when there are many."""
        samples = list(op.sample_inputs(device, dtype, requires_grad=True))
        samples.sort(key=lambda sample: sample.input.numel(), reverse=True)
        mixtures = 4 ** max(len(tensors(arguments(sample))) for sample in samples)
        for sample in samples[: max(1, MIXTURES // mixtures)]:
            composite_compliance.check_forward_ad_formula(
                op.get_op(), *arguments(sample), op.gradcheck_wrapper, self.assertEqual
            )

    @ops(op_db, allowed_dtypes=F32)
    def test_gradients_of_fake_tensors(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Each operator of the forward and the backward, real and fake beside one another."""
        for sample in op.sample_inputs(device, dtype, requires_grad=True):
            with CrossRefFakeMode(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                composite_compliance.compute_expected_grads(op.get_op(), *arguments(sample))

    @ops(op_db, allowed_dtypes=F32)
    def test_gradients_of_tensors_with_gaps(
        self, device: str, dtype: torch.dtype, op: OpInfo
    ) -> None:
        """Non-contiguous samples: the gradients that contiguous ones have."""
        for sample in op.sample_inputs(device, dtype, requires_grad=True):
            gaps = sample.noncontiguous()
            results = []
            for given in (sample, gaps):
                args, kwargs = arguments(given)
                leaves = [t for t in tensors((args, kwargs)) if t.requires_grad]
                out = tensors(op(*args, **kwargs))
                grads = [torch.ones_like(t) for t in out]
                results.append((out, torch.autograd.grad(out, leaves, grads)))
            self.assertEqual(results[1], results[0])

    @ops(op_db, allowed_dtypes=F32)
    def test_inputs_that_are_copied_on_write_stay_unwritten(
        self, device: str, dtype: torch.dtype, op: OpInfo
    ) -> None:
        """A kernel that asks for a mutable pointer of what it only reads makes a copy of it."""
        for sample in op.sample_inputs(device, dtype):
            args, kwargs = arguments(sample)
            lazy = pytree.tree_map_only(torch.Tensor, torch._lazy_clone, (args, kwargs))
            op(*lazy[0], **lazy[1])
            for tensor in tensors(lazy):
                self.assertTrue(torch._C._is_cow_tensor(tensor) or not tensor.numel())


class TestOut(TestCase):
    """The operators whose out= is public."""

    @ops(WITH_OUT, allowed_dtypes=F32)
    def test_writes_into_any_strides_and_resizes(
        self, device: str, dtype: torch.dtype, op: OpInfo
    ) -> None:
        """Strides of a fitting out are kept, whatever was in it is gone, another size warns."""
        for sample in op.sample_inputs(device, dtype):
            args, kwargs = arguments(sample)
            expected = op(*args, **kwargs)
            for out in (
                torch.full_like(expected, float("nan")),
                torch.full((*expected.shape, 2), float("nan"), device=device)[..., 1],
            ):
                strides, address = out.stride(), out.data_ptr()
                self.assertIs(op(*args, **kwargs, out=out), out)
                self.assertEqual(out, expected)
                self.assertEqual((out.stride(), out.data_ptr()), (strides, address))
            if expected.numel():
                other = torch.empty(expected.numel() + 1, device=device)
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    op(*args, **kwargs, out=other)
                self.assertEqual(other, expected)
                self.assertTrue(any("was resized" in str(w.message) for w in caught))

    @ops(WITH_OUT, allowed_dtypes=F32)
    def test_refuses_a_gradient_and_a_lower_kind(
        self, device: str, dtype: torch.dtype, op: OpInfo
    ) -> None:
        """An out that requires a gradient, integers for real numbers."""
        sample = next(iter(op.sample_inputs(device, dtype, requires_grad=True)))
        args, kwargs = arguments(sample)
        expected = op(*args, **kwargs).detach()
        with self.assertRaisesRegex(RuntimeError, "don't support automatic differentiation"):
            op(*args, **kwargs, out=torch.empty_like(expected))
        plain = [a.detach() if isinstance(a, torch.Tensor) else a for a in args]
        with self.assertRaisesRegex(RuntimeError, "can't be cast"):
            op(*plain, **kwargs, out=torch.empty_like(expected, dtype=torch.long))


class TestTorchScript(JitCommonTestCase):
    """Scripted and traced, with gradients, exported and imported again."""

    @ops(op_db, allowed_dtypes=F32)
    def test_function_and_method(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """As upstream's test_variant_consistency_jit."""
        variants = {"function": op.get_op(), "method": op.get_method()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            for kind, function in variants.items():
                if function is not None:
                    for sample in op.sample_inputs(device, dtype, requires_grad=True):
                        self.check(op, kind, function, sample)

    # What upstream's runner sets from its command line.
    @mock.patch.object(common_utils, "GRAPH_EXECUTOR", ProfilingMode.PROFILING)
    def check(self, op: OpInfo, kind: str, function: Any, sample: SampleInput) -> None:
        """One sample against eager."""
        args, kwargs = (sample.input, *sample.args), dict(sample.kwargs)
        for compiled in (
            create_traced_fn(self, function),
            create_script_fn(self, op.name, "functional" if kind == "function" else kind),
        ):
            check_against_reference(
                self, compiled, function, lambda out: out, args, kwargs, check_types=False
            )


class TestDecompositions(TestCase):
    """torch.export lowers to core ATen; the additions have no decomposition and stay."""

    @ops(op_db, allowed_dtypes=F32)
    def test_exported_and_lowered(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """The same numbers through run_decompositions."""
        sample = list(op.sample_inputs(device, dtype))[-1]

        class Call(torch.nn.Module):
            def forward(self, *args: torch.Tensor) -> object:
                return op(*args, **sample.kwargs)

        args, _ = arguments(sample)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(Call(), tuple(args)).run_decompositions()
        names = {str(node.target) for node in program.graph.nodes}
        kept = "gdh_copy" if op.name == "gdh" else op.name  # gdh is composite
        self.assertIn(f"aten.{kept}.default", names)
        self.assertEqual(tensors(program.module()(*args)), tensors(op(*args, **sample.kwargs)))


DEVICE_TYPES = ("cpu", "cuda")
instantiate_device_type_tests(TestCompliance, globals(), only_for=DEVICE_TYPES)
instantiate_device_type_tests(TestOut, globals(), only_for=DEVICE_TYPES)
instantiate_device_type_tests(TestTorchScript, globals(), only_for=DEVICE_TYPES)
instantiate_device_type_tests(TestDecompositions, globals(), only_for=DEVICE_TYPES)
