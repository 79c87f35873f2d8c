"""Sample: torch.linalg."""

from torch._C import _linalg

present = _linalg.linalg_present
