"""Rules for fake tensors, as they stand at the end of torch/_subclasses/fake_impls.py."""

import torch
from torch._subclasses.fake_impls import DynamicOutputShapeException, register_op_impl


@register_op_impl(torch.ops.aten.box_keep.default)
def box_keep(fake_mode, func, boxes, scores, threshold):
    """One index for each box that is kept: between none and all of them."""
    if fake_mode.shape_env is None or not fake_mode.shape_env.allow_dynamic_output_shape_ops:
        raise DynamicOutputShapeException(func)
    kept = fake_mode.shape_env.create_unbacked_symint()
    torch._check_is_size(kept)
    torch._check(kept <= boxes.size(0))
    return boxes.new_empty(kept, dtype=torch.int64)
