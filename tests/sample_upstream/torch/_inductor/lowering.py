"""Sample: lowerings of all overloads of a name."""

import torch  # noqa: F401


def get_overloads(aten_fn):
    aten_fn = list(aten_fn)
    for fn in list(aten_fn):
        aten_fn.extend(getattr(fn, "overloads", []))
    return aten_fn
