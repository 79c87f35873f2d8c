"""Sample: calls that stay in a graph though nobody uses their result."""

from collections.abc import Callable

import torch

_ops = torch.ops

_side_effectful_functions: set[Callable] = {
    torch._assert,
}
