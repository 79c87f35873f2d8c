# ruff: noqa: F403
from torch import nn as nn
from torch import return_types as return_types
from torch._C import Generator as Generator
from torch._C import SymInt as SymInt
from torch._C import TensorBase
from torch._C._VariableFunctions import *

class Tensor(TensorBase): ...
class memory_format: ...

contiguous_format: memory_format
