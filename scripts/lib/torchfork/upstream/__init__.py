"""Official PyTorch as it is: pins, wheels, source trees, installed copies."""
