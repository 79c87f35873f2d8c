import torch
from torch.nn.modules.conv import Conv2d
from torch.nn.modules.depthwise_ext import DepthwiseConv2dExt
from torch.nn.modules.module import Module

__all__ = ["convert_depthwise"]


def convert_depthwise(module: Module) -> Module:
    r"""Replace each depthwise :class:`~torch.nn.Conv2d` by a :class:`~torch.nn.DepthwiseConv2dExt`.

    Replaced are convolutions with as many groups as input channels, and more than one, with real
    floating point weights. Subclasses of Conv2d and parametrized convolutions are left alone: what
    they compute is theirs. The parameters are shared and the names in ``state_dict`` stay the same,
    so checkpoints and optimizers go on working. A module that is used in several places is replaced
    by one module.

    Args:
        module (Module): the model; its children are replaced in place

    Returns:
        The model; a new module where it is a depthwise convolution itself.

    Example::

        >>> model = nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), nn.ReLU(), nn.Conv2d(8, 4, 1))
        >>> torch.nn.utils.convert_depthwise(model)
        Sequential(
          (0): DepthwiseConv2dExt(8, kernel_size=(3, 3), stride=(1, 1), bias=True)
          (1): ReLU()
          (2): Conv2d(8, 4, kernel_size=(1, 1), stride=(1, 1))
        )
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError(
            "convert_depthwise: expected a module of Python code, but got a ScriptModule; "
            "convert the model before torch.jit.script"
        )
    replaced = {
        conv: DepthwiseConv2dExt.from_conv2d(conv)
        for conv in module.modules()
        if _is_depthwise(conv)
    }
    for parent in list(module.modules()):
        for name, child in parent._modules.items():
            if child in replaced:
                parent._modules[name] = replaced[child]
    return replaced.get(module, module)


def _is_depthwise(module: Module) -> bool:
    return (
        type(module) is Conv2d
        and module.groups == module.in_channels > 1
        and "weight" in module._parameters
        and module.weight.is_floating_point()
    )
