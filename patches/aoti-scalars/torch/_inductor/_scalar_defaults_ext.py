# mypy: allow-untyped-defs
"""Keyword arguments of a fallback kernel as the code that calls it has them."""

import torch


def filled(kernel, kwargs):
    """`kwargs` and the defaults of the Scalars that only a keyword can give and none has.

    The compiled code hands them to the proxy executor, which expects what the node beside it has.
    """
    schema = getattr(kernel.op_overload, "_schema", None)  # a higher-order operator has none
    missing = {
        argument.name: argument.default_value
        for argument in (schema.arguments if schema else ())
        if argument.kwarg_only
        and argument.name not in kwargs
        and argument.default_value is not None
        and isinstance(argument.type, torch.NumberType)
    }
    return {**kwargs, **missing}
