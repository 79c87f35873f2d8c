"""Sample: torch.nn.functional."""

import torch

gelu = torch._C._nn.gelu
