"""Sample: torch.special."""

from torch._C import _special

__all__ = ["present"]

present = _special.special_present
