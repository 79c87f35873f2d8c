"""What is fuzzed: each operator with a valid call, and the ways in which a call is spoilt."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
DTYPES = [*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64,
          torch.complex128, torch.int8, torch.int16, torch.uint16, torch.float8_e4m3fn]  # fmt: skip
# Small, negative, beyond 32 bits, at the ends of 64. Between them a call would only be slow.
INTEGERS = [0, 1, 2, 3, -1, -2, 7, 2**31 - 1, 2**31, 2**40, -(2**40), 2**62, 2**63 - 1, -(2**63)]
OTHER_THINGS = [None, "same", 1.5, float("nan"), True, 3, [], (), [1], {}, object(), 1j, 2**70]


@dataclass(frozen=True)
class Spec:
    """A tensor to be made on some device: as data, so that it can be made twice."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    layout: str = "plain"
    device: str = ""  # the device under test, or another one

    def make(self, device: str) -> Tensor:
        """Ones, on the device under test unless the spec names another."""
        place = self.device or device
        x = torch.ones(self.shape, dtype=self.dtype, device=place)
        return LAYOUTS[self.layout](x)


def _strided(x: Tensor) -> Tensor:
    return torch.stack([x, x], -1)[..., 0]


def _nested(x: Tensor) -> Tensor:
    return torch.nested.nested_tensor([x, x], layout=torch.jagged if x.dim() else torch.strided)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "transposed": lambda x: x.transpose(0, -1) if x.dim() else x,
    "strided": _strided,
    "expanded": lambda x: x.new_ones(()).expand(x.shape),
    "channels last": lambda x: (
        x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
    ),
    "requires grad": lambda x: x.requires_grad_(x.is_floating_point() or x.is_complex()),
    "negative": lambda x: torch._neg_view(x) if x.dtype in FLOATS else x,
    "conjugate": lambda x: x.conj(),
    # without strides
    "sparse": lambda x: x.to_sparse(),
    "sparse rows": lambda x: x.to_sparse_csr(),
    "nested": _nested,
    "quantized": lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
    "mkldnn": lambda x: x.to_mkldnn(),
    "inference": lambda x: _in_inference_mode(x),
}
ODD = ("sparse", "sparse rows", "nested", "quantized", "mkldnn", "inference")


def _in_inference_mode(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x.clone()


@dataclass(frozen=True)
class Target:
    """One callable, the names by which its errors may call it, and a generator of valid calls."""

    name: str
    call: Callable[..., Any]
    valid: Callable[[random.Random], tuple[list[Any], dict[str, Any]]]


def _image(draw: random.Random) -> tuple[Spec, Spec, int]:
    channels, multiplier = draw.choice([1, 2, 3, 17]), draw.choice([1, 1, 2])
    kernel = (draw.choice([1, 2, 3]), draw.choice([1, 3, 5]))
    size = (draw.choice([1, 3, 6]), draw.choice([2, 5, 19]))
    dtype = draw.choice(FLOATS)
    batch = () if draw.random() < 0.2 else (draw.choice([0, 1, 2]),)
    x = Spec((*batch, channels, *size), dtype)
    return x, Spec((channels * multiplier, 1, *kernel), dtype), channels * multiplier


def _window(draw: random.Random, x: Spec, w: Spec) -> list[Any]:
    stride = [draw.choice([1, 2, 3]) for _ in range(2)]
    padding = [k // 2 + draw.choice([0, 1]) for k in w.shape[2:]]
    return [stride, padding, [1, 1]]


def _convolution(draw: random.Random) -> tuple[list[Any], dict[str, Any]]:
    x, w, outputs = _image(draw)
    bias = Spec((outputs,), x.dtype) if draw.random() < 0.5 else None
    return [x, w, bias, *_window(draw, x, w)], {}


def _convolution_backward(draw: random.Random) -> tuple[list[Any], dict[str, Any]]:
    x, w, outputs = _image(draw)
    stride, padding, dilation = _window(draw, x, w)
    size = [
        (s + 2 * p - d * (k - 1) - 1) // t + 1
        for s, p, d, k, t in zip(x.shape[-2:], padding, dilation, w.shape[2:], stride, strict=True)
    ]
    grad = Spec((*x.shape[:-3], outputs, *size), x.dtype)
    mask = [draw.random() < 0.7 for _ in range(3)]
    return [grad, x, w, stride, padding, dilation, mask], {}


def _one(draw: random.Random) -> tuple[list[Any], dict[str, Any]]:
    shape = draw.choice([(), (0,), (5,), (3, 4), (2, 1, 7), (2, 3, 1, 17)])
    return [Spec(shape, draw.choice(FLOATS))], {}


def _two(draw: random.Random) -> tuple[list[Any], dict[str, Any]]:
    (first,), _ = _one(draw)
    return [first, Spec(first.shape, first.dtype)], {}


def _axpy(draw: random.Random) -> tuple[list[Any], dict[str, Any]]:
    tensors, _ = _two(draw)
    return tensors, {"alpha": draw.choice([2, 1, -0.5, 0, 3])}


def _with_out(
    valid: Callable[[random.Random], tuple[list[Any], dict[str, Any]]], name: str = "out"
) -> Callable[[random.Random], tuple[list[Any], dict[str, Any]]]:
    def made(draw: random.Random) -> tuple[list[Any], dict[str, Any]]:
        args, kwargs = valid(draw)
        return args, {**kwargs, name: Spec(args[0].shape, args[0].dtype)}

    return made


def _cell(draw: random.Random) -> tuple[list[Any], dict[str, Any]]:
    b, f, s = draw.choice([0, 1, 3]), draw.choice([0, 1, 4]), draw.choice([0, 1, 5, 17])
    dtype = draw.choice(FLOATS)
    shapes = [(b, f), (3 * s, f + s), (3 * s,), (b, s), (b, s)]
    return [Spec(shape, dtype) for shape in shapes], {}


def _cell_backward(draw: random.Random) -> tuple[list[Any], dict[str, Any]]:
    (x, w, _, h, c), _ = _cell(draw)
    gates = Spec((x.shape[0], w.shape[0]), x.dtype)
    grads = [t if draw.random() < 0.7 else None for t in (h, c, gates)]
    return [*grads, x, w, h, c, gates, [draw.random() < 0.7 for _ in range(5)]], {}


def targets() -> list[Target]:
    """Every public way to call an operator of the additions that has checks of its own.

    The out= variants that the code generator writes beside it check nothing but out, as upstream's.
    """
    aten = torch.ops.aten
    return [
        Target("gdh", torch.gdh, _one),
        Target("gdh_copy", torch.gdh_copy, _one),
        Target("depthwise_conv2d_ext", torch.depthwise_conv2d_ext, _convolution),
        Target("depthwise_conv2d_ext", aten.depthwise_conv2d_ext, _convolution),
        Target("depthwise_conv2d_ext_backward", aten.depthwise_conv2d_ext_backward,
               _convolution_backward),
        Target("sigmoid_ext", torch.sigmoid_ext, _one),
        Target("sigmoid_ext", torch.sigmoid_ext, _with_out(_one)),
        Target("sigmoid_ext_", torch.sigmoid_ext_, _one),
        Target("sigmoid_ext_backward", aten.sigmoid_ext_backward, _two),
        Target("sigmoid_ext_backward", aten.sigmoid_ext_backward.grad_input,
               _with_out(_two, "grad_input")),
        Target("axpy_ext", torch.axpy_ext, _axpy),
        Target("axpy_ext", torch.axpy_ext, _with_out(_axpy)),
        Target("axpy_ext_", torch.Tensor.axpy_ext_, _axpy),
        Target("lltm_cell", torch.lltm_cell, _cell),
        Target("lltm_cell_backward", aten.lltm_cell_backward, _cell_backward),
    ]  # fmt: skip


def spoil(draw: random.Random, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Change one argument into something that may be wrong."""
    places: list[tuple[Any, Any]] = [(args, i) for i in range(len(args))]
    places += [(kwargs, name) for name in kwargs]
    holder, key = draw.choice(places)
    kind = draw.random()
    if kind < 0.04:
        holder[key] = draw.choice(OTHER_THINGS)
    elif kind < 0.05:
        args.append(draw.choice(OTHER_THINGS))
    elif kind < 0.06 and args:
        args.pop()
    else:
        holder[key] = spoilt(draw, holder[key])


def spoilt(draw: random.Random, value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, Spec):
        return _spoilt_tensor(draw, value)
    if isinstance(value, list) and value and isinstance(value[0], bool):
        return [draw.random() < 0.5 for _ in range(draw.choice([len(value), 0, 1, 2, 4, 6]))]
    if isinstance(value, list):
        return [draw.choice(INTEGERS) for _ in range(draw.choice([2, 2, 2, 1, 0, 3, 5]))]
    if value is None:
        return _spoilt_tensor(draw, Spec((3,)))
    return draw.choice([*INTEGERS, 0.5, 1e39, float("inf"), 1j, 1e39j, True])


def _spoilt_tensor(draw: random.Random, x: Spec) -> Spec:
    shape, dtype, layout, device = x.shape, x.dtype, x.layout, x.device
    kind = draw.choice(["size", "rank", "dtype", "layout", "layout", "odd", "device", "size"])
    if kind == "size" and shape:
        i = draw.randrange(len(shape))
        shape = (*shape[:i], draw.choice([0, 1, 2, 3, 5, shape[i] + 1]), *shape[i + 1 :])
    elif kind == "rank":
        shape = draw.choice([(), shape[1:], (1, *shape), (*shape, 1), (2, *shape, 2), (4,)])
    elif kind == "dtype":
        dtype = draw.choice(DTYPES)
    elif kind == "odd":
        layout = draw.choice(ODD) if draw.random() < 0.3 else layout
    elif kind == "device":
        device = "meta" if draw.random() < 0.3 else device
    else:
        layout = draw.choice([name for name in LAYOUTS if name not in ODD])
    return Spec(shape, dtype, layout, device)
