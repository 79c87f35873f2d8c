# mypy: allow-untyped-defs
import math

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn import init
from torch.nn.parameter import Parameter

from .module import Module

__all__ = ["LLTMCell"]


class LLTMCell(Module):
    r"""A long-long-term-memory (LLTM) cell: an LSTM without a forget gate, with an ELU candidate.

    .. math::

        \begin{array}{ll}
        [i, o, g] = W [h, x] + b \\
        c' = c + \text{ELU}(g) \odot \sigma(i) \\
        h' = \tanh(c') \odot \sigma(o)
        \end{array}

    where :math:`\sigma` is the sigmoid function, :math:`\odot` is the Hadamard product and
    :math:`[h, x]` are the hidden state and the input side by side.

    Args:
        input_size (int): The number of expected features in the input `x`
        hidden_size (int): The number of features in the hidden state `h`

    Inputs: input, (h_0, c_0)
        - **input** of shape `(batch, input_size)` or `(input_size)`: input features
        - **h_0** of shape `(batch, hidden_size)` or `(hidden_size)`: the initial hidden state
        - **c_0** of shape `(batch, hidden_size)` or `(hidden_size)`: the initial cell state

          If `(h_0, c_0)` is not provided, both **h_0** and **c_0** default to zero.

    Outputs: (h_1, c_1)
        - **h_1** of shape `(batch, hidden_size)` or `(hidden_size)`: the next hidden state
        - **c_1** of shape `(batch, hidden_size)` or `(hidden_size)`: the next cell state

    Attributes:
        weight: the learnable weights, of shape `(3*hidden_size, input_size + hidden_size)`
        bias: the learnable bias, of shape `(3*hidden_size)`

    .. note::
        All the weights and biases are initialized from :math:`\mathcal{U}(-\sqrt{k}, \sqrt{k})`
        where :math:`k = \frac{1}{\text{hidden\_size}}`

    Examples::

        >>> cell = nn.LLTMCell(10, 20)  # (input_size, hidden_size)
        >>> input = torch.randn(2, 3, 10)  # (time_steps, batch, input_size)
        >>> hx = torch.zeros(3, 20), torch.zeros(3, 20)
        >>> output = []
        >>> for step in input:
        ...     hx = cell(step, hx)
        ...     output.append(hx[0])
        >>> torch.stack(output).shape
        torch.Size([2, 3, 20])
    """

    __constants__ = ["input_size", "hidden_size"]  # noqa: RUF012

    input_size: int
    hidden_size: int
    weight: Tensor
    bias: Tensor

    def __init__(self, input_size: int, hidden_size: int, device=None, dtype=None) -> None:
        super().__init__()
        factory_kwargs = {"device": device, "dtype": dtype}
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.weight = Parameter(
            torch.empty((3 * hidden_size, input_size + hidden_size), **factory_kwargs)
        )
        self.bias = Parameter(torch.empty(3 * hidden_size, **factory_kwargs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        if input.dim() not in (1, 2):
            raise ValueError(f"LLTMCell: Expected input to be 1D or 2D, got {input.dim()}D instead")
        batched = input if input.dim() == 2 else input.unsqueeze(0)
        if hx is None:
            zeros = torch.zeros(
                batched.size(0), self.hidden_size, dtype=input.dtype, device=input.device
            )
            return self._step(input, batched, zeros, zeros)
        h, c = hx
        if h.dim() != input.dim() or c.dim() != input.dim():
            raise ValueError(
                f"LLTMCell: Expected hx to be {input.dim()}D as input is, "
                f"got {h.dim()}D and {c.dim()}D instead"
            )
        if input.dim() == 2:
            return self._step(input, batched, h, c)
        return self._step(input, batched, h.unsqueeze(0), c.unsqueeze(0))

    def _step(
        self, input: Tensor, batched: Tensor, h: Tensor, c: Tensor
    ) -> tuple[Tensor, Tensor]:
        new_h, new_c = F.lltm_cell(batched, self.weight, self.bias, h, c)
        if input.dim() == 2:
            return new_h, new_c
        return new_h.squeeze(0), new_c.squeeze(0)
