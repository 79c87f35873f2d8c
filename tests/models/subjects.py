"""timm's models as the tests take them: random weights of a fixed seed, few classes."""

from __future__ import annotations

import copy
import functools

import torch
from real_models import timm_model  # benchmarks/real_models.py
from torch import Tensor, nn

# Each with the number of its depthwise convolutions.
MODELS = {
    "mobilenetv2_100": 17,
    "mobilenetv3_large_100": 15,
    "efficientnet_b0": 16,
    "convnext_tiny": 18,
}
# ConvNeXt scales what its blocks add by 1e-6 at first: of its convolutions the outputs would say
# nothing.
SETTINGS = {"convnext_tiny": {"ls_init_value": 0.5}}
CLASSES = 10


# Activations with corners, and one of like form that has none.
SMOOTH: dict[type[nn.Module], type[nn.Module]] = {
    nn.ReLU: nn.SiLU,
    nn.ReLU6: nn.SiLU,
    nn.Hardswish: nn.SiLU,
    nn.Hardsigmoid: nn.Sigmoid,
}


@functools.cache
def _fresh(name: str, smooth: bool) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm_model(name, num_classes=CLASSES, **SETTINGS.get(name, {}))
    for parent in list(model.modules()) if smooth else []:
        for child, module in list(parent.named_children()):
            if type(module) in SMOOTH:
                setattr(parent, child, SMOOTH[type(module)]())
    return model


def stock(name: str, smooth: bool = False) -> nn.Module:
    """A copy of timm's model of this name; each has the same weights.

    A smooth one has no activations with corners: of a million values some are so near a corner that
    a rounding takes them across, and then gradients differ in their third digit, whoever rounded.
    """
    return copy.deepcopy(_fresh(name, smooth))


def converted(model: nn.Module) -> nn.Module:
    """A converted copy; the model stays as it is."""
    return nn.utils.convert_depthwise(copy.deepcopy(model))


def depthwise_names(model: nn.Module) -> set[str]:
    """The names of the depthwise convolutions of a model that nobody converted."""
    return {
        name
        for name, m in model.named_modules()
        if isinstance(m, nn.Conv2d) and m.groups == m.in_channels > 1
    }


def ours(model: nn.Module) -> dict[str, nn.Module]:
    """The converted convolutions by name."""
    return {n: m for n, m in model.named_modules() if type(m) is nn.DepthwiseConv2dExt}


def images(batch: int = 3) -> Tensor:
    """Random ones, whose height and width differ; the last convolutions see 2 x 3 of 48 x 80."""
    return torch.randn(batch, 3, 48, 80)
