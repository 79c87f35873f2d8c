# ruff: noqa: F401
from typing import Final, NoReturn, Self

from torch import Tensor
from torch.types import _int

__all__ = ["max"]

class max(tuple[Tensor, Tensor]): ...
