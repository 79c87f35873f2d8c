"""Sample: torch.sparse."""

from torch._C import _sparse

__all__ = ["present"]

present = _sparse.sparse_present
