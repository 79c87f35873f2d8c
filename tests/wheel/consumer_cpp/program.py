"""Build both extensions with the interpreter that has the wheel, use them, and tell the outcome."""

import json
import sys
from pathlib import Path

import torch
from torch.utils.cpp_extension import load, load_inline

here, build = Path(sys.argv[1]), Path(sys.argv[2])
functions = [
    "gdh_function", "gdh_method", "gdh_copy_out", "convolution", "convolution_symint", "node_of",
    "by_dispatcher", "schema_by_dispatcher", "output_channels",
]  # fmt: skip
for name in ("inline", "library"):
    (build / name).mkdir()
inline = load_inline(
    "consumer_inline", (here / "inline.cpp").read_text(), functions=functions,
    build_directory=str(build / "inline"), extra_cflags=["-O0"],
)  # fmt: skip
load(
    "consumer_library", [str(here / "library.cpp")],
    build_directory=str(build / "library"), extra_cflags=["-O0"], is_python_module=False,
)  # fmt: skip

x = torch.arange(32.0).view(1, 2, 4, 4).requires_grad_()
weight = torch.linspace(-1, 1, 18).view(2, 1, 3, 3).requires_grad_()
conv = torch.nn.functional.conv2d
expected = conv(x, weight, padding=1, groups=2)


def gradients(y):
    return torch.autograd.grad(y.square().sum(), (x, weight))


def close(left, right):
    pairs = zip(left, right, strict=True) if isinstance(left, tuple) else [(left, right)]
    return all(torch.allclose(a, b, atol=1e-4, rtol=1e-5) for a, b in pairs)


y, strided = inline.convolution(x, weight), x.detach().transpose(2, 3)
flat = torch.ops.consumer.flat_convolution
answer = {
    "function": inline.gdh_function(strided).equal(strided.reshape(-1)),
    "method": inline.gdh_method(strided).equal(strided.reshape(-1)),
    "alias": inline.gdh_function(x).data_ptr() == x.data_ptr(),
    "copy_out": inline.gdh_copy_out(strided).equal(strided.reshape(-1)),
    "dispatcher": inline.by_dispatcher(strided).equal(strided.reshape(-1)),
    "schemas": [
        inline.schema_by_dispatcher("aten::gdh", ""),
        inline.schema_by_dispatcher("aten::depthwise_conv2d_ext", "out"),
    ],
    "forward": close(y, expected) and close(inline.convolution_symint(x, weight), expected),
    "backward": close(gradients(y), gradients(expected)),
    "node": inline.node_of(y),
    "header": inline.output_channels(3, 4),
    "library": close(flat(x, weight), conv(x, weight, groups=2).reshape(-1)),
    "library_backward": close(
        gradients(flat(x, weight)), gradients(conv(x, weight, groups=2).reshape(-1))
    ),
}
print(json.dumps(answer))
