# mypy: allow-untyped-defs
import copy

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.common_types import _size_2_t

from .conv import Conv2d

__all__ = ["DepthwiseConv2dExt"]


class DepthwiseConv2dExt(Conv2d):
    r"""Applies a depthwise 2D convolution: each input channel is convolved with filters of its own.

    It is :class:`~torch.nn.Conv2d` with ``groups=in_channels``, computed by
    :func:`torch.depthwise_conv2d_ext`. Parameters, their shapes and their initialization are those
    of that :class:`~torch.nn.Conv2d`, so a ``state_dict`` of the one loads into the other.

    With input size :math:`(N, C, H, W)`, multiplier :math:`m` and output
    :math:`(N, C m, H_{\text{out}}, W_{\text{out}})`:

    .. math::
        \text{out}(n, c m + j) = \text{bias}(c m + j)
        + \text{weight}(c m + j, 0) \star \text{input}(n, c), \quad 0 \le j < m

    where :math:`\star` is the valid 2D `cross-correlation`_ operator.

    Floating point input of 16 bits is accumulated in 32 bits. Forward and backward are
    deterministic, whatever the number of threads.

    Args:
        channels (int): Number of channels in the input image
        kernel_size (int or tuple, optional): Size of the convolving kernel. Default: 3
        stride (int or tuple, optional): Stride of the convolution. Default: 1
        padding (int, tuple or str, optional): Padding added to all four sides of the input:
            numbers, ``'valid'`` for none, or ``'same'`` to keep the size, which needs stride 1.
            Default: 0
        dilation (int or tuple, optional): Spacing between kernel elements. Default: 1
        multiplier (int, optional): Number of filters, and so of output channels, for each input
            channel. Default: 1
        bias (bool, optional): If ``True``, adds a learnable bias to the output. Default: ``False``
        padding_mode (str, optional): ``'zeros'``, ``'reflect'``, ``'replicate'`` or
            ``'circular'``. Default: ``'zeros'``

    Shape:
        - Input: :math:`(N, C, H_{in}, W_{in})` or :math:`(C, H_{in}, W_{in})`
        - Output: :math:`(N, C m, H_{out}, W_{out})` or :math:`(C m, H_{out}, W_{out})`, where

          .. math::
              H_{out} = \left\lfloor\frac{H_{in}  + 2 \times \text{padding}[0] - \text{dilation}[0]
                        \times (\text{kernel\_size}[0] - 1) - 1}{\text{stride}[0]} + 1\right\rfloor

          .. math::
              W_{out} = \left\lfloor\frac{W_{in}  + 2 \times \text{padding}[1] - \text{dilation}[1]
                        \times (\text{kernel\_size}[1] - 1) - 1}{\text{stride}[1]} + 1\right\rfloor

    Attributes:
        weight (Tensor): the learnable weights of the module of shape
            :math:`(C m, 1, \text{kernel\_size[0]}, \text{kernel\_size[1]})`, sampled from
            :math:`\mathcal{U}(-\sqrt{k}, \sqrt{k})` where
            :math:`k = \frac{1}{\prod_{i=0}^{1}\text{kernel\_size}[i]}`
        bias (Tensor): the learnable bias of the module of shape :math:`(C m)`, sampled from the
            same distribution, if :attr:`bias` is ``True``

    Examples::

        >>> m = nn.DepthwiseConv2dExt(16, (3, 5), stride=(2, 1), padding=(1, 2), multiplier=2)
        >>> m(torch.randn(20, 16, 50, 100)).shape
        torch.Size([20, 32, 25, 100])
        >>> conv = nn.Conv2d(16, 32, 3, groups=16)
        >>> same = nn.DepthwiseConv2dExt.from_conv2d(conv)
        >>> same.weight is conv.weight
        True

    .. _cross-correlation:
        https://en.wikipedia.org/wiki/Cross-correlation
    """

    channels: int
    multiplier: int

    def __init__(
        self,
        channels: int,
        kernel_size: _size_2_t = 3,
        stride: _size_2_t = 1,
        padding: str | _size_2_t = 0,
        dilation: _size_2_t = 1,
        multiplier: int = 1,
        bias: bool = False,
        padding_mode: str = "zeros",
        device=None,
        dtype=None,
    ) -> None:
        if channels <= 0:
            raise ValueError(
                f"DepthwiseConv2dExt: expected channels to be positive, but got {channels}"
            )
        if multiplier <= 0:
            raise ValueError(
                f"DepthwiseConv2dExt: expected multiplier to be positive, but got {multiplier}"
            )
        super().__init__(
            channels,
            channels * multiplier,
            kernel_size,
            stride,
            padding,
            dilation,
            groups=channels,
            bias=bias,
            padding_mode=padding_mode,  # type: ignore[arg-type]
            device=device,
            dtype=dtype,
        )
        self.channels = channels
        self.multiplier = multiplier

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None):
        if self.padding_mode != "zeros":
            return F.depthwise_conv2d_ext(
                F.pad(
                    input, self._reversed_padding_repeated_twice, mode=self.padding_mode
                ),
                weight,
                bias,
                self.stride,
                (0, 0),
                self.dilation,
            )
        if isinstance(self.padding, str):
            # What the string means was computed before. An odd row or column goes to the end.
            left, right, top, bottom = self._reversed_padding_repeated_twice
            if right > left or bottom > top:
                input = F.pad(input, [0, right - left, 0, bottom - top])
            return F.depthwise_conv2d_ext(
                input, weight, bias, self.stride, (top, left), self.dilation
            )
        return F.depthwise_conv2d_ext(
            input, weight, bias, self.stride, self.padding, self.dilation
        )

    def extra_repr(self) -> str:
        s = f"{self.channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        if self.padding not in ((0, 0), "valid"):
            s += f", padding={self.padding!r}"
        if self.dilation != (1, 1):
            s += f", dilation={self.dilation}"
        if self.multiplier != 1:
            s += f", multiplier={self.multiplier}"
        s += f", bias={self.bias is not None}"
        if self.padding_mode != "zeros":
            s += f", padding_mode={self.padding_mode}"
        return s

    @classmethod
    def from_conv2d(cls, conv: Conv2d) -> "DepthwiseConv2dExt":
        r"""Makes a module that computes what ``conv`` computes, with the same parameters.

        The parameters themselves are shared, so an optimizer that has them goes on working; hooks
        and the training mode are taken over.

        Args:
            conv (Conv2d): a convolution with ``groups`` equal to its input channels. Of a subclass
                only the parameters and settings are taken over, not what it computes otherwise.

        Raises:
            TypeError: ``conv`` is no :class:`~torch.nn.Conv2d`, or it is a lazy one that has no
                shape yet, or it is parametrized.
            ValueError: it is not depthwise, or its weight is not real floating point.

        Examples::

            >>> conv = nn.Conv2d(4, 8, 3, groups=4)
            >>> nn.DepthwiseConv2dExt.from_conv2d(conv)
            DepthwiseConv2dExt(4, kernel_size=(3, 3), stride=(1, 1), multiplier=2, bias=True)
        """
        if not isinstance(conv, Conv2d):
            raise TypeError(f"expected conv to be a Conv2d, but got {type(conv).__name__}")
        if torch.nn.parameter.is_lazy(conv.weight):
            raise TypeError("expected conv to have its shape, but got a lazy one: run it once")
        if "weight" not in conv._parameters or "bias" not in conv._parameters:
            raise TypeError(
                f"expected conv to have its weight as a parameter, but got {type(conv).__name__} "
                "whose weight is computed: remove its parametrization first"
            )
        if conv.groups != conv.in_channels:
            raise ValueError(
                "expected conv to have as many groups as input channels, but got "
                f"groups={conv.groups} and in_channels={conv.in_channels}"
            )
        if not conv.weight.is_floating_point():
            raise ValueError(
                f"expected conv to have a real floating point weight, but got {conv.weight.dtype}"
            )
        new = cls.__new__(cls)
        for name, value in conv.__dict__.items():
            # Dictionaries of parameters and hooks are copied, what is in them is shared.
            new.__dict__[name] = copy.copy(value) if isinstance(value, dict) else value
        new.channels = conv.in_channels
        new.multiplier = conv.out_channels // conv.in_channels
        return new
