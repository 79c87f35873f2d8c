# mypy: allow-untyped-defs
"""Docstrings of functions and Tensor methods that come with additions to ATen."""

import torch
from torch._C import _add_docstr as add_docstr

add_docstr(
    torch.gdh,
    r"""
gdh(input) -> Tensor

Return the elements of :attr:`input` in C order as a tensor of one dimension.

The result is a view of :attr:`input` where that is contiguous, and a copy otherwise. Its gradient
has the shape of :attr:`input`. A tensor of zero dimensions gives one element. See
:func:`torch.gdh_copy` for a result that never shares memory.

Args:
    input (Tensor): the input tensor, dense and of strided layout.

Example::

    >>> x = torch.arange(6.).reshape(2, 3)
    >>> torch.gdh(x)
    tensor([0., 1., 2., 3., 4., 5.])
    >>> torch.gdh(x).data_ptr() == x.data_ptr()
    True
    >>> torch.gdh(x.t())
    tensor([0., 3., 1., 4., 2., 5.])
""",
)

add_docstr(
    torch.gdh_copy,
    r"""
gdh_copy(input) -> Tensor

Performs the same operation as :func:`torch.gdh`, but the result always has memory of its own.

Args:
    input (Tensor): the input tensor, dense and of strided layout.
""",
)

add_docstr(
    torch.depthwise_conv2d_ext,
    r"""
depthwise_conv2d_ext(input, weight, bias=None, stride=1, padding=0, dilation=1) -> Tensor

Apply a depthwise 2D convolution: each channel of the input has :math:`m` filters of its own.

.. math::
    \text{out}(n, c m + j, y, x) = \text{bias}(c m + j) + \sum_{p=0}^{kH-1} \sum_{q=0}^{kW-1}
    \text{weight}(c m + j, 0, p, q) \,
    \text{input}(n, c, y \, sH + p \, dH - padH, x \, sW + q \, dW - padW)

with :math:`0 \le j < m`, and elements outside of the input being zero. It equals
:func:`torch.nn.functional.conv2d` with ``groups`` set to the number of input channels. Input of 16
bits is accumulated in 32 bits. Forward and backward are deterministic, whatever the number of
threads. The result has the suggested memory format of :attr:`input`.

Args:
    input (Tensor): of shape :math:`(N, C, H, W)` or :math:`(C, H, W)`; float, double, half or
        bfloat16.
    weight (Tensor): the filters, of shape :math:`(C m, 1, kH, kW)` with an integer multiplier
        :math:`m \ge 1`.
    bias (Tensor, optional): of shape :math:`(C m)`. Default: ``None``
    stride (int or tuple of ints, optional): `sH` and `sW`, positive. Default: 1
    padding (int or tuple of ints, optional): `padH` and `padW`, rows and columns of zeros on
        either side. Default: 0
    dilation (int or tuple of ints, optional): `dH` and `dW`, positive. Default: 1

Returns:
    Tensor: of shape :math:`(N, C m, H_{out}, W_{out})`, or without :math:`N` for input without it,
    where :math:`H_{out} = \lfloor (H + 2 padH - dH (kH - 1) - 1) / sH \rfloor + 1`, and the width
    likewise.

Example::

    >>> input = torch.ones(1, 2, 4, 5)
    >>> weight = torch.ones(4, 1, 3, 3)
    >>> output = torch.depthwise_conv2d_ext(input, weight, padding=1)
    >>> output.shape
    torch.Size([1, 4, 4, 5])
    >>> output[0, 0]
    tensor([[4., 6., 6., 6., 4.],
            [6., 9., 9., 9., 6.],
            [6., 9., 9., 9., 6.],
            [4., 6., 6., 6., 4.]])
""",
)

add_docstr(
    torch.sigmoid_ext,
    r"""
sigmoid_ext(input, *, out=None) -> Tensor

Compute the logistic function of each element, without overflow at either end.

.. math::
    \text{out}_{i} = \frac{1}{1 + e^{-\text{input}_{i}}}

Integers and booleans give a result of the default floating point type; complex numbers are refused.

Args:
    input (Tensor): the input tensor.

Keyword args:
    out (Tensor, optional): the output tensor.

Example::

    >>> torch.sigmoid_ext(torch.tensor([-1000., 0., 1000.]))
    tensor([0.0000, 0.5000, 1.0000])
""",
)

add_docstr(
    torch.sigmoid_ext_,
    r"""
sigmoid_ext_(input) -> Tensor

In-place version of :func:`torch.sigmoid_ext`.
""",
)

add_docstr(
    torch.axpy_ext,
    r"""
axpy_ext(input, other, *, alpha=2, out=None) -> Tensor

Compute :attr:`alpha` times :attr:`input` plus :attr:`other`.

.. math::
    \text{out}_{i} = \text{alpha} \times \text{input}_{i} + \text{other}_{i}

Supports broadcasting to a common shape, type promotion, and integer, float and complex inputs.

Args:
    input (Tensor): the tensor that is scaled.
    other (Tensor): the tensor that is added.

Keyword args:
    alpha (Number): the factor; of a type that :func:`torch.add` takes for its own. Default: 2
    out (Tensor, optional): the output tensor.

Example::

    >>> torch.axpy_ext(torch.tensor([1, 2, 3]), torch.tensor([10, 20, 30]))
    tensor([12, 24, 36])
    >>> torch.axpy_ext(torch.ones(2, 1), torch.arange(3), alpha=0.5)
    tensor([[0.5000, 1.5000, 2.5000],
            [0.5000, 1.5000, 2.5000]])
""",
)

add_docstr(
    torch.lltm_cell,
    r"""
lltm_cell(input, weight, bias, old_h, old_cell) -> (Tensor, Tensor, Tensor)

Compute one step of a long-long-term-memory (LLTM) cell.

.. math::

    \begin{array}{ll}
    [i, o, g] = W [h, x] + b \\
    c' = c + \text{ELU}(g) \odot \sigma(i) \\
    h' = \tanh(c') \odot \sigma(o)
    \end{array}

Returns a namedtuple ``(new_h, new_cell, gates)``, where ``gates`` are the sums :math:`[i, o, g]`
before their activations, which the backward uses. See :class:`torch.nn.LLTMCell` for the module.

Args:
    input (Tensor): the features :math:`x`, of shape :math:`(B, F)`; float, double, half or
        bfloat16.
    weight (Tensor): :math:`W`, of shape :math:`(3S, S + F)`.
    bias (Tensor): :math:`b`, of shape :math:`(3S)`.
    old_h (Tensor): the hidden state :math:`h`, of shape :math:`(B, S)`.
    old_cell (Tensor): the cell state :math:`c`, of shape :math:`(B, S)`.

Example::

    >>> x, h, c = torch.ones(1, 2), torch.zeros(1, 3), torch.zeros(1, 3)
    >>> new_h, new_cell, gates = torch.lltm_cell(x, torch.zeros(9, 5), torch.ones(9), h, c)
    >>> new_cell
    tensor([[0.7311, 0.7311, 0.7311]])
    >>> gates.shape
    torch.Size([1, 9])
""",
)


def _add_method_docstr(name: str, text: str) -> None:
    add_docstr(getattr(torch._C.TensorBase, name), text)


_add_method_docstr(
    "gdh",
    r"""
gdh() -> Tensor

See :func:`torch.gdh`
""",
)

_add_method_docstr(
    "sigmoid_ext",
    r"""
sigmoid_ext() -> Tensor

See :func:`torch.sigmoid_ext`
""",
)

_add_method_docstr(
    "sigmoid_ext_",
    r"""
sigmoid_ext_() -> Tensor

In-place version of :meth:`~Tensor.sigmoid_ext`
""",
)

_add_method_docstr(
    "axpy_ext",
    r"""
axpy_ext(other, *, alpha=2) -> Tensor

See :func:`torch.axpy_ext`
""",
)

_add_method_docstr(
    "axpy_ext_",
    r"""
axpy_ext_(other, *, alpha=2) -> Tensor

In-place version of :meth:`~Tensor.axpy_ext`
""",
)
