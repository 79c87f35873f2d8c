"""The additions' OpInfos are in PyTorch's own list, so that its operator tests run on them."""

from __future__ import annotations

from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.definitions import aten_ext


def test_op_db_has_each_added_operator_once_beside_upstreams() -> None:
    names = [op.name for op in op_db]
    assert len(aten_ext.op_db) >= 6
    for op in aten_ext.op_db:
        assert names.count(op.name) == 1 and op in op_db
    assert {"ravel", "nn.functional.conv2d", "linalg.svd"} <= set(names), "upstream's are there"
