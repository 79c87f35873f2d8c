"""nn.Conv2d's cases for PyTorch's module tests, as DepthwiseConv2dExt has them: groups=C."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import nn
from torch.testing import make_tensor
from torch.testing._internal.common_modules import FunctionInput, ModuleInfo, ModuleInput

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


def module_inputs(
    module_info: ModuleInfo,
    device: str,
    dtype: torch.dtype,
    requires_grad: bool,
    training: bool,
    **kwargs: object,
) -> list[ModuleInput]:
    """Batched and unbatched input for each set of options."""
    shapes = [(2, CHANNELS, 5, 7), (CHANNELS, 5, 7)]
    return [
        ModuleInput(
            FunctionInput(CHANNELS, (3, 2) if "same" not in str(options) else 3, **options),
            FunctionInput(
                make_tensor(shape, device=device, dtype=dtype, requires_grad=requires_grad)
            ),
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
