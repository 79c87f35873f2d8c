"""Sample: torch.nested."""

from torch._C import _nested

__all__ = ["present"]

present = _nested.nested_present
