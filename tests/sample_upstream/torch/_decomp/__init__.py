"""Sample: decompositions of all overloads of a name."""


def _add_op_to_registry(registry, op, fn):
    overloads = [op] if hasattr(op, "overloadpacket") else list(op.overloads)
    for op_overload in overloads:
        registry[op_overload.name()] = fn
