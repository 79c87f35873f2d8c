"""torchfork: carry your own native operators inside PyTorch."""
