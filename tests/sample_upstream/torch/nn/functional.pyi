from torch._C._nn import gelu as gelu

__all__ = ["gelu"]
