"""Runs every OpInfo sample of our operators, forward and backward; JSON of hashes of the results.

The same seeds give the same inputs in any build of one release, so equal hashes are bitwise-equal
outputs.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.opinfo.definitions import aten_ext

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64)


def main() -> None:
    """Answer on the last line of stdout."""
    torch.set_num_threads(1)
    answer: dict[str, str] = {}
    for info in aten_ext.op_db:
        for dtype in DTYPES:
            if dtype in info.dtypes:
                answer.update(_results(info, dtype))
    sys.stdout.write("\n" + json.dumps(answer, sort_keys=True) + "\n")


def _results(info: Any, dtype: torch.dtype) -> Iterator[tuple[str, str]]:
    differentiable = dtype.is_floating_point and info.supports_autograd
    torch.manual_seed(20)
    samples = list(info.sample_inputs("cpu", dtype, requires_grad=differentiable))
    for number, sample in enumerate(samples):
        name = f"{info.name} {dtype} {number}"
        results = _tensors(info.op(sample.input, *sample.args, **sample.kwargs))
        yield name, _hash(results)
        if differentiable and any(r.requires_grad for r in results):
            inputs = [t for t in _tensors((sample.input, *sample.args)) if t.requires_grad]
            sums = [r.float().sum() for r in results if r.requires_grad]
            gradients = torch.autograd.grad(sums, inputs, allow_unused=True)
            yield f"{name} gradients", _hash([g for g in gradients if g is not None])


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for part in value for tensor in _tensors(part)]
    return []


def _hash(tensors: list[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        # A tensor of one element may have any stride, and a view of it as bytes has none.
        flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
        flat.copy_(tensor.detach().reshape(-1))
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}{tensor.stride()}".encode())
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
