"""The additions' OpInfos through PyTorch's own testing machinery, on every device."""

from __future__ import annotations

import warnings

import pytest

# torch.testing._internal imports it and torch does not depend on it.
pytest.importorskip("expecttest", reason="torch.testing._internal needs expecttest")

import torch
from torch.testing._internal.common_device_type import (
    OpDTypes,
    instantiate_device_type_tests,
    ops,
)
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.testing._internal.opinfo.definitions.aten_ext import op_db

GRADIENT_DTYPES = (torch.float64, torch.complex128)


def call(op: OpInfo, sample: SampleInput) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """The operator on a sample."""
    return op(sample.input, *sample.args, **sample.kwargs)


class TestAdditions(TestCase):
    """Instantiated for each device type below."""

    @ops(op_db)
    def test_samples_match_the_reference(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Also where the sample's tensors are made non-contiguous."""
        for sample in op.sample_inputs(device, dtype):
            expected = op.ref(sample.input, *sample.args, **sample.kwargs)
            self.assertEqual(call(op, sample), expected)
            self.assertEqual(call(op, sample.noncontiguous()), expected)

    @ops(op_db, dtypes=OpDTypes.unsupported)
    def test_other_dtypes_are_refused(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """The OpInfo's dtypes are all that the operator takes."""
        if op.name.startswith("gdh"):
            self.assertNotIn(dtype, op.dtypes)  # exotic dtypes: whatever ravel does
            return
        if op.name == "axpy_ext":
            self.assertEqual(dtype, torch.complex32)  # taken too: test_axpy_ext.py
            return
        for sample in op.sample_inputs(device, dtype):
            with self.assertRaisesRegex(RuntimeError, "expected (input|self) to be float"):
                call(op, sample)

    @ops(op_db, dtypes=OpDTypes.none)
    def test_error_inputs(self, device: str, op: OpInfo) -> None:
        """Each refusal is of its type and says its words."""
        for error in op.error_inputs(torch.device(device)):
            with self.assertRaisesRegex(error.error_type, error.error_regex):
                call(op, error.sample_input)

    @ops(op_db, allowed_dtypes=GRADIENT_DTYPES)
    def test_gradients(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """First and second order, forward and reverse, fast mode."""
        for sample in op.sample_inputs(device, dtype, requires_grad=True):
            tensors = [sample.input, *sample.args]

            def function(*args: torch.Tensor, kwargs: dict = sample.kwargs) -> torch.Tensor:
                return op(*args, **kwargs)

            options = {"fast_mode": True, "nondet_tol": op.gradcheck_nondet_tol}
            self.assertTrue(
                torch.autograd.gradcheck(function, tensors, check_forward_ad=True, **options)
            )
            self.assertTrue(
                torch.autograd.gradgradcheck(function, tensors, check_fwd_over_rev=True, **options)
            )

    @ops(op_db, allowed_dtypes=(torch.float32,))
    def test_opcheck(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Schema, autograd registration, fake tensors, AOT dispatch static and dynamic."""
        overload = getattr(torch.ops.aten, op.name).default
        for sample in op.sample_inputs(device, dtype, requires_grad=True):
            args, kwargs = (sample.input, *sample.args), dict(sample.kwargs)
            # torch.ops takes lists where the Python binding takes one number for both.
            for name, value in kwargs.items():
                kwargs[name] = [value, value] if isinstance(value, int) else value
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.library.opcheck(overload, args, kwargs)

    @ops(op_db, allowed_dtypes=(torch.float32,))
    def test_vmap(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """A loop over the batched input gives the same."""
        for sample in op.sample_inputs(device, dtype):
            batch = torch.stack([sample.input, sample.input * 2, -sample.input])

            def function(x: torch.Tensor, sample: SampleInput = sample) -> torch.Tensor:
                return op(x, *sample.args, **sample.kwargs)

            with warnings.catch_warnings():
                warnings.filterwarnings("error", message=".*performance drop")  # a loop
                actual = torch.vmap(function)(batch)
            # An operator with several results gives as many batches.
            single = isinstance(actual, torch.Tensor)
            each = [[function(x)] if single else function(x) for x in batch]
            expected = [torch.stack(results) for results in zip(*each, strict=True)]
            self.assertEqual([actual] if single else list(actual), expected)


instantiate_device_type_tests(TestAdditions, globals(), only_for=("cpu", "cuda"))
