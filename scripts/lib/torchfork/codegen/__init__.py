"""PyTorch's own code generator, run on additions."""
