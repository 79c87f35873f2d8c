"""timm's models with random weights and what is timed of them; tests/models has them from here."""

from __future__ import annotations

import copy
import functools
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.library import Library

IMAGE = 224
CLASSES = 1000
FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
# Operators that torchvision registers fake kernels for when it is imported. PyPI's wheels of it are
# compiled for CUDA: beside a torch for CPUs their library cannot be loaded, so nobody has declared
# these, and the import ends there. No model here calls them.
UNDECLARED = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[Library] = []  # a Library takes its declarations back when it goes


@functools.cache
def import_timm() -> ModuleType:
    """timm, on a torchvision whose own library may not load."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        _declared.append(Library("torchvision", "FRAGMENT"))
        for schema in UNDECLARED:
            _declared[0].define(schema)
    return importlib.import_module("timm")


def timm_model(name: str, **settings: Any) -> nn.Module:
    """A model of timm's with random weights, from torch's generator; nothing is fetched."""
    return import_timm().create_model(name, pretrained=False, **settings)


def pairs(
    stock: nn.Module, images: Tensor, run: Callable[[nn.Module, Tensor], Callable[[], Any]]
) -> dict[str, Callable[[], Any]]:
    """What `run` makes of stock and converted in both memory formats, each on its own copy."""
    converted = nn.utils.convert_depthwise(copy.deepcopy(stock))
    return {
        f"{who} {layout}": run(
            copy.deepcopy(model).to(images.device, memory_format=memory_format),
            images.to(memory_format=memory_format),
        )
        for layout, memory_format in FORMATS.items()
        for who, model in (("stock", stock), ("converted", converted))
    }


def training(
    model: nn.Module, images: Tensor, autocast: torch.dtype | None = None
) -> Callable[[], None]:
    """A training step on the images (N, 3, H, W): forward, loss, backward, update by SGD."""
    model.train()
    labels = torch.randint(CLASSES, (len(images),), device=images.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    kind = images.device.type

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(kind, autocast, enabled=autocast is not None):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def inference(
    model: nn.Module, images: Tensor, autocast: torch.dtype | None = None
) -> Callable[[], None]:
    """The model's forward on the images (N, 3, H, W) in evaluation mode, without gradients."""
    model.eval()
    kind = images.device.type

    def run() -> None:
        with torch.inference_mode(), torch.autocast(kind, autocast, enabled=autocast is not None):
            model(images)

    return run


def ratios(times: dict[str, float]) -> dict[str, float]:
    """Stock's time over converted's: in each memory format, and each at its better one."""
    found = {layout: times[f"stock {layout}"] / times[f"converted {layout}"] for layout in FORMATS}
    best = {
        who: min(times[f"{who} {layout}"] for layout in FORMATS) for who in ("stock", "converted")
    }
    return {**found, "best": best["stock"] / best["converted"]}


def write(path: Path | None, head: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """Everything as JSON, where a path is given."""
    if path:
        path.write_text(json.dumps({**head, "results": results}, indent=1))
