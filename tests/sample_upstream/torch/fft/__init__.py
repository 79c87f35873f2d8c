"""Sample: torch.fft."""

from torch._C import _fft

__all__ = ["present"]

present = _fft.fft_present
