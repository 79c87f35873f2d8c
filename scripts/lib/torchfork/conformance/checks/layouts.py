"""The same tensor in other memory: transposed, strided, expanded, channels_last, offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Layout = Callable[[Any], Any]


def transposed(tensor: Any) -> Any:
    """Dimensions in reverse order in memory."""
    if tensor.dim() < 2:
        return strided(tensor)
    order = list(range(tensor.dim()))[::-1]
    return tensor.detach().permute(order).contiguous().permute(order)


def strided(tensor: Any) -> Any:
    """Every second element of a larger tensor, from the second on."""
    if tensor.dim() == 0:
        return offset(tensor)
    shape = [*tensor.shape[:-1], 2 * tensor.shape[-1] + 1]
    larger = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
    view = larger[..., 1::2]
    view.copy_(tensor.detach())
    return view


def offset(tensor: Any) -> Any:
    """Contiguous, but not at the beginning of its storage, nor aligned."""
    larger = torch.zeros(tensor.numel() + 3, dtype=tensor.dtype, device=tensor.device)
    view = larger[3:].view(tensor.shape)
    view.copy_(tensor.detach())
    return view


def expanded(tensor: Any) -> Any:
    """One row, all others being the same memory (the values are other ones)."""
    if tensor.dim() == 0 or not tensor.shape[0]:
        return tensor.detach()
    return tensor.detach()[:1].contiguous().expand(tensor.shape)


def channels_last(tensor: Any) -> Any:
    """Channels last where there are four dimensions."""
    if tensor.dim() != 4:
        return tensor.detach()
    return tensor.detach().clone(memory_format=torch.channels_last)


LAYOUTS: dict[str, Layout] = {
    "transposed": transposed,
    "strided": strided,
    "offset": offset,
    "expanded": expanded,
}


def plain(tensor: Any) -> Any:
    """The same values, contiguous, in memory of their own."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def kept(laid: Any, original: Any) -> Any:
    """A laid out tensor as a leaf with the original's requires_grad."""
    return laid.detach().requires_grad_(original.requires_grad)
