"""nn.Conv2d's cases for PyTorch's module tests, as DepthwiseConv2dExt has them: groups=C."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import nn
from torch.testing import make_tensor
from torch.testing._internal.common_modules import FunctionInput, ModuleInfo, ModuleInput, module_db

CHANNELS = 4
# What Conv2d's entry has, and the other arguments of its constructor.
OPTIONS: list[dict[str, Any]] = [
    {},
    {"padding": "same"},
    {"padding": "valid"},
    {"padding": (1, 2), "stride": (2, 1), "bias": True},
    {"dilation": (2, 1), "padding": 2, "multiplier": 2},
    {"padding": 1, "padding_mode": "reflect", "bias": True},
    {"padding": (2, 1), "padding_mode": "circular"},
    {"padding": "same", "dilation": 2, "padding_mode": "replicate", "multiplier": 3},
]


def as_conv2d(module: nn.DepthwiseConv2dExt) -> nn.Conv2d:
    """Upstream's module with the same settings and parameters."""
    conv = nn.Conv2d(
        module.channels,
        module.channels * module.multiplier,
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        groups=module.channels,
        bias=module.bias is not None,
        padding_mode=module.padding_mode,
        device=module.weight.device,
        dtype=module.weight.dtype,
    )
    conv.load_state_dict(module.state_dict())
    return conv


def depthwise(
    in_channels: int,
    out_channels: int,
    kernel_size: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    bias: bool = True,
    padding_mode: str = "zeros",
) -> nn.DepthwiseConv2dExt:
    """What nn.Conv2d would be with these arguments and groups=C, at least as many outputs."""
    window = (kernel_size, stride, padding, dilation)
    filters = -(-out_channels // in_channels)
    return nn.DepthwiseConv2dExt(in_channels, *window, filters, bias, padding_mode)


def upstreams_inputs(module_info: ModuleInfo, **kwargs: Any) -> list[ModuleInput]:
    """The cases of nn.Conv2d's own entry in module_db, made depthwise by `depthwise`."""
    (entry,) = [info for info in module_db if info.module_cls is nn.Conv2d]
    return [
        ModuleInput(
            as_ours(*case.constructor_input.args, **case.constructor_input.kwargs),
            case.forward_input,
            desc=f"upstream's {case.desc} {case.constructor_input.kwargs}",
            reference_fn=lambda module, parameters, x: as_conv2d(module)(x),
        )
        for case in entry.module_inputs_func(entry, **kwargs)
    ]


def as_ours(channels: int, outputs: int, kernel_size: Any, **kwargs: Any) -> FunctionInput:
    """Arguments of nn.Conv2d as arguments of ours; its bias is there unless it is refused."""
    filters = -(-outputs // channels)
    return FunctionInput(channels, kernel_size, multiplier=filters, **{"bias": True, **kwargs})


def module_inputs(
    module_info: ModuleInfo,
    device: str,
    dtype: torch.dtype,
    requires_grad: bool,
    training: bool,
    **kwargs: object,
) -> list[ModuleInput]:
    """Upstream's cases; batched and unbatched input for each set of options."""
    given = {"device": device, "dtype": dtype, "requires_grad": requires_grad}
    shapes = [(2, CHANNELS, 5, 7), (CHANNELS, 5, 7)]
    return upstreams_inputs(module_info, training=training, **given) + [
        ModuleInput(
            FunctionInput(CHANNELS, (3, 2) if "same" not in str(options) else 3, **options),
            FunctionInput(make_tensor(shape, **given)),
            desc=str(options),
            reference_fn=lambda module, parameters, x: as_conv2d(module)(x),
        )
        for options, shape in product(OPTIONS, shapes)
    ]


INFO = ModuleInfo(
    nn.DepthwiseConv2dExt,
    module_inputs_func=module_inputs,
    module_memformat_affects_out=True,
    dtypes=(torch.float32, torch.float64, torch.float16, torch.bfloat16),
)
