"""convert_depthwise on models from PyPI (timm) with random weights: same results and checkpoints.

timm is not among the requirements (it wants a torchvision of the same release); where it cannot be
imported these tests are skipped, with the reason.
"""

from __future__ import annotations

import copy
import os

import pytest
import torch
from torch import nn

try:
    import timm
except (ImportError, RuntimeError) as error:  # a torchvision of another build is a RuntimeError
    pytest.skip(f"timm cannot be imported: {error}", allow_module_level=True)

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is to be fetched
# Each with the number of its depthwise convolutions that are plain Conv2d.
MODELS = {
    "mobilenetv2_100": 17, "mobilenetv3_small_100": 11, "mobilenetv3_large_100": 15,
    "efficientnet_b0": 16, "tf_efficientnet_b0": 12, "convnext_atto": 12,
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_real_model_computes_the_same_after_conversion(name: str) -> None:
    model = timm.create_model(name, pretrained=False).double().eval()
    converted = nn.utils.convert_depthwise(copy.deepcopy(model))
    ours = [m for m in converted.modules() if type(m) is nn.DepthwiseConv2dExt]
    assert len(ours) == MODELS[name]
    x = torch.randn(2, 3, 64, 96, dtype=torch.double)
    expected, found = model(x), converted(x)
    torch.testing.assert_close(found, expected)
    grads = [
        torch.autograd.grad(out.sin().sum(), list(m.parameters()))
        for out, m in ((found, converted), (expected, model))
    ]
    for ours_, theirs in zip(*grads, strict=True):
        scale = max(float(theirs.abs().max()), 1e-12)
        torch.testing.assert_close(ours_ / scale, theirs / scale, rtol=0, atol=1e-9)
    converted.load_state_dict(model.state_dict(), strict=True)


def test_a_converted_real_model_compiles_and_exports() -> None:
    model = timm.create_model("mobilenetv3_small_100", pretrained=False).eval()
    nn.utils.convert_depthwise(model)
    x = torch.randn(2, 3, 64, 96)
    expected = model(x)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected)
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), expected)
