"""torchfork: carry your own native operators inside PyTorch."""

__version__ = "1.0.0"
