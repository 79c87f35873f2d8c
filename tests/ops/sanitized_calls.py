"""Calls that reach each CUDA kernel of depthwise_conv2d_ext in each type it takes.

    compute-sanitizer --tool racecheck --kernel-name kns=depthwise_conv2d_ext \\
        python tests/ops/sanitized_calls.py

and the same with synccheck and, where PYTORCH_NO_CUDA_MEMORY_CACHING=1 makes an allocation of each
tensor, with memcheck and initcheck. Nothing here looks at results: test_depthwise_tiles.py does, at
these sizes and more. `--kernels` says, without a sanitizer, which kernels ran, with the types among
their template arguments, and fails where one of the sources did not.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from depthwise_cases import Case, make_inputs

SOURCES = Path(__file__).parents[2] / "aten_src" / "native" / "cuda" / "depthwise_conv2d_ext"
TYPES = {"f": torch.float32, "h": torch.float16, "b": torch.bfloat16, "d": torch.float64}
PASSES = [(True, False, False), (False, True, True), (True, True, True)]
SMALL: dict[str, Any] = {"padding": (1, 1)}
FIVE: dict[str, Any] = {"padding": (2, 2)}
SEVEN: dict[str, Any] = {"padding": (3, 3)}
HALVED: dict[str, Any] = {"stride": (2, 2)}

# Types, one call; the kernels that it is there for.
PLANES = [
    ("fhbd", Case(2, 5, 1, (9, 11), (2, 2), **HALVED)),  # gather, grad_weight_partial, add_partials
    ("fhb", Case(2, 5, 1, (9, 31), (3, 4), padding=(1, 2))),  # tile_grad_weight
    ("fhb", Case(3, 7, 1, (2, 5), (3, 3), padding=(3, 2))),  # march
    ("fhb", Case(9, 239, 1, (65, 65), (3, 3), padding=(2, 2), dilation=(2, 2))),  # of phases
    ("fhb", Case(9, 5, 1, (29, 28), (5, 5), **HALVED, **FIVE)),  # and patches, at stride 2
    ("fhb", Case(40, 8, 1, (14, 14), (3, 3), **HALVED, **SMALL)),
    ("fhb", Case(2, 35, 1, (6, 28), (7, 7), **SEVEN)),  # patches; march, rows of whole vectors
    ("f", Case(14, 51, 1, (56, 56), (7, 7), **SEVEN)),
    ("fhb", Case(7, 72, 1, (7, 7), (5, 5), **FIVE)),  # patches of whole planes
    ("fhb", Case(13, 11, 1, (67, 64), (3, 3), **SMALL)),  # patches in bands
    ("fhb", Case(3, 5, 1, (40, 1001), (3, 3), **SMALL)),
    ("f", Case(17, 33, 1, (20, 14), (9, 9), padding=(4, 4))),  # plane_gemm of larger planes; tiles
    ("f", Case(17, 3, 1, (6, 28), (29, 9), padding=(20, 4))),
    ("fhb", Case(70, 24, 1, (7, 14), (9, 9), padding=(4, 4))),  # plane_gemm
    ("hb", Case(22, 100, 1, (10, 56), (7, 7), **SEVEN)),  # bands
    ("hb", Case(17, 3, 1, (6, 28), (29, 9), padding=(20, 4))),  # of rows of no whole blocks
    ("hb", Case(5, 22, 2, (57, 96), (3, 3), **SMALL)),  # grad_input of two outputs
    ("fhb", Case(3, 1001, 1, (203, 1), (3, 1), padding=(1, 0))),  # sequence
]
CHANNELS_LAST = [
    ("fhbd", Case(2, 3, 2, (31, 17), (11, 11), padding=(5, 5))),  # copies; bands, generic
    ("fhb", Case(2, 33, 3, (20, 21), (3, 3), **SMALL)),  # generic; copies, march
    ("fhb", Case(3, 7, 1, (2, 5), (3, 3), padding=(3, 2))),  # march
    ("fhb", Case(2, 20, 1, (9, 11), (3, 3), **SMALL)),  # of whole vectors
    ("fhb", Case(2, 37, 1, (9, 7), (7, 7), **SEVEN)),
    ("fhb", Case(4, 16, 1, (1, 9), (5, 5), **HALVED, **FIVE)),  # at stride 2
    ("fhb", Case(7, 72, 1, (7, 7), (5, 5), **FIVE)),  # boxes
    ("fhb", Case(30, 48, 1, (29, 35), (3, 3), **SMALL)),
    ("fhb", Case(5, 136, 1, (21, 56), (5, 5), **FIVE)),
    ("fhb", Case(20, 64, 1, (20, 52), (7, 7), **SEVEN)),  # and rows read again
    ("f", Case(131, 48, 1, (7, 7), (7, 7), **SEVEN)),  # images side by side
    ("fhb", Case(3, 8, 1, (1, 301), (1, 4), padding=(0, 3))),  # sequence
]
CALLS = [
    *((torch.contiguous_format, *call) for call in PLANES),
    *((torch.channels_last, *call) for call in CHANNELS_LAST),
]


def make_calls() -> None:
    """Every pass of every call, of tensors that came from the host, as initcheck wants them."""
    for memory_format, types, case in CALLS:
        for dtype in (TYPES[name] for name in types):
            inputs = make_inputs(case, dtype=dtype, memory_format=memory_format)
            x, w, bias = inputs.cast(device="cuda")
            shape = torch.depthwise_conv2d_ext(x, w, bias, *case.window).shape
            grad = torch.randn(shape, dtype=dtype).contiguous(memory_format=memory_format).cuda()
            for mask in PASSES:
                torch.ops.aten.depthwise_conv2d_ext_backward(grad, x, w, *case.window, mask)
    torch.cuda.synchronize()


def kernels_run() -> dict[str, set[str]]:
    """The kernels that make_calls() runs, with the types among their template arguments."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        make_calls()
    kernels: defaultdict[str, set[str]] = defaultdict(set)
    for name in {event.name for event in profile.events()}:
        kernel = re.search(r"depthwise_conv2d_ext_cuda::.*?(\w+_kernel)<(.*?>)\(", name)
        if kernel:
            kernels[kernel[1]] |= set(re.findall(r"float|double|Half|BFloat16", kernel[2]))
    return kernels


def main() -> None:
    """Makes the calls; with --kernels says which ran."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kernels", action="store_true", help="say which kernels ran")
    if not parser.parse_args().kernels:
        make_calls()
        return
    ran = kernels_run()
    for name, types in sorted(ran.items()):
        print(f"{name:34}", *sorted(types))
    text = "".join(path.read_text() for path in SOURCES.iterdir())
    missing = set(re.findall(r"__global__ [^;{]*?void (\w+_kernel)\(", text)) - set(ran)
    sys.exit(f"these did not run: {', '.join(sorted(missing))}" if missing else 0)


if __name__ == "__main__":
    main()
