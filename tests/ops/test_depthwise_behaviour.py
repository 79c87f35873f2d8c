"""depthwise_conv2d_ext: determinism, NaN placement, empty sizes, out= variants and refusals."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from depthwise_cases import DTYPES, FORMATS, Case, Inputs, conv2d, make_inputs

op = torch.depthwise_conv2d_ext
aten = torch.ops.aten
backward = aten.depthwise_conv2d_ext_backward
ALL = (True, True, True)


def every_result(dtype: torch.dtype, memory_format: torch.memory_format, device: str) -> list:
    """Forward and all gradients of a size that is worth several threads."""
    case = Case(4, 19, 1, (37, 41), (5, 3), stride=(1, 2), padding=(2, 1))
    x, w, b = make_inputs(case, device=device, dtype=dtype, memory_format=memory_format)
    y = op(x, w, b, *case.window)
    return [y, *backward(torch.randn_like(y), x, w, *case.window, ALL)]


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_same_bits_at_any_thread_count(
    dtype: torch.dtype, memory_format: torch.memory_format, device: str
) -> None:
    """Bitwise, without torch.use_deterministic_algorithms."""
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            torch.manual_seed(3)
            results.append(every_result(dtype, memory_format, device))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_allowed_in_deterministic_mode(device: str) -> None:
    """No alert and no other result."""
    torch.manual_seed(3)
    expected = every_result(torch.float32, torch.contiguous_format, device)
    torch.use_deterministic_algorithms(True)
    try:
        torch.manual_seed(3)
        actual = every_result(torch.float32, torch.contiguous_format, device)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


# One pixel each: corner, border, inside; on a kernel that reaches far into the padding.
NAN_CASE = Case(2, 3, 1, (4, 5), (3, 4), padding=(2, 3), dilation=(1, 2))


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("where", [(0, 0), (3, 4), (0, 2), (2, 1)], ids=str)
def test_a_nan_in_the_input_stays_where_its_taps_reach(
    where: tuple[int, int], memory_format: torch.memory_format, value: float, device: str
) -> None:
    """Elements that the NaN cannot reach are as if it were not there."""
    x, w, b = make_inputs(NAN_CASE, device=device, dtype=torch.float32, memory_format=memory_format)
    clean = op(x, w, b, *NAN_CASE.window)
    x[1, 2, where[0], where[1]] = value
    dirty = op(x, w, b, *NAN_CASE.window)
    reached = torch.zeros_like(x)
    reached[1, 2, where[0], where[1]] = 1
    reached = conv2d(NAN_CASE, Inputs(reached, torch.ones_like(w), None)) > 0.5
    assert bool((~dirty[reached].isfinite()).all())
    assert torch.equal(dirty[~reached], clean[~reached])


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("tap", [(0, 0), (2, 3), (1, 1)], ids=str)
def test_padding_never_multiplies_a_nan_of_the_weight(
    tap: tuple[int, int], memory_format: torch.memory_format, device: str
) -> None:
    """0 · NaN would spread the NaN over the border; a tap in the padding is not a term."""
    x, w, b = make_inputs(NAN_CASE, device=device, dtype=torch.float32, memory_format=memory_format)
    clean = op(x, w, b, *NAN_CASE.window)
    w[1, 0, tap[0], tap[1]] = float("nan")
    dirty = op(x, w, b, *NAN_CASE.window)
    uses = torch.zeros_like(w)
    uses[1, 0, tap[0], tap[1]] = 1
    used = conv2d(NAN_CASE, Inputs(torch.ones_like(x), uses, None)) > 0.5
    assert not bool(used[:, 1].all())
    assert bool(dirty[used].isnan().all())
    # CUDA kernels compute again what their zeros outside the image spoilt, in another order.
    rounding = 0.0 if device == "cpu" else 1e-6
    torch.testing.assert_close(dirty[~used], clean[~used], rtol=rounding, atol=rounding)

    grad = torch.randn_like(clean)
    dx = backward(grad, x, w, *NAN_CASE.window, ALL)[0]
    expected = torch.ops.aten.convolution_backward(
        torch.ones_like(grad).double().cpu(),
        x.double().cpu(),
        uses.double().cpu(),
        None,
        *NAN_CASE.window,
        False,
        [0, 0],
        3,
        (True, False, False),
    )[0]
    assert torch.equal(dx.isnan().cpu(), expected > 0.5)


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
def test_a_nan_in_the_gradient_reaches_only_its_window(
    memory_format: torch.memory_format, device: str
) -> None:
    """grad_input is NaN exactly where the output pixel looked; other channels stay clean."""
    x, w, b = make_inputs(NAN_CASE, device=device, dtype=torch.float32, memory_format=memory_format)
    grad = torch.zeros_like(op(x, w, b, *NAN_CASE.window))
    grad[0, 1, 0, 0] = float("nan")
    dx, dw, db = backward(grad, x, w, *NAN_CASE.window, ALL)
    assert dx.isnan().nonzero().tolist() == [[0, 1, 0, 1], [0, 1, 0, 3]]
    assert dw.isnan().nonzero().tolist() == [[1, 0, 2, 2], [1, 0, 2, 3]]
    assert db.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
def test_empty_batch(memory_format: torch.memory_format, device: str) -> None:
    """No images: an empty result, and gradients of zeros for weight and bias."""
    x = torch.randn(0, 3, 5, 6, device=device).contiguous(memory_format=memory_format)
    w = torch.randn(6, 1, 3, 3, device=device)
    y = op(x, w, None, 1, 1)
    assert y.shape == (0, 6, 5, 6)
    dx, dw, db = backward(y, x, w, (1, 1), (1, 1), (1, 1), ALL)
    assert dx.shape == x.shape
    assert torch.equal(dw, torch.zeros_like(w))
    assert torch.equal(db, torch.zeros(6, device=device))


def test_an_input_without_rows_is_all_padding(device: str) -> None:
    """Height 0 with padding: the output is the bias, and nothing reaches the weight."""
    x = torch.randn(2, 3, 0, 4, device=device)
    w = torch.randn(3, 1, 2, 3, device=device)
    b = torch.randn(3, device=device)
    y = op(x, w, b, 1, 1)
    assert torch.equal(y, b.view(1, 3, 1, 1).expand(2, 3, 1, 4))
    dx, dw, db = backward(torch.ones_like(y), x, w, (1, 1), (1, 1), (1, 1), ALL)
    assert dx.shape == x.shape
    assert torch.equal(dw, torch.zeros_like(w))
    assert db.tolist() == [8.0, 8.0, 8.0]


def test_out_variants_write_resize_and_refuse(device: str) -> None:
    """out= takes the result's shape from empty, keeps its address, refuses another dtype."""
    x, w, b = make_inputs(Case(2, 3, 2, (5, 7), (3, 3)), device=device, dtype=torch.float32)
    expected = op(x, w, b)
    window = ((1, 1), (0, 0), (1, 1))
    out = torch.empty_like(expected)
    address = out.data_ptr()
    assert aten.depthwise_conv2d_ext.out(x, w, b, *window, out=out) is out
    assert torch.equal(out, expected)
    assert out.data_ptr() == address
    empty = torch.empty(0, device=device)
    aten.depthwise_conv2d_ext.out(x, w, b, *window, out=empty)
    assert torch.equal(empty, expected)

    grad = torch.randn_like(expected)
    outs = [torch.empty(0, device=device) for _ in range(3)]
    aten.depthwise_conv2d_ext_backward.out(
        grad, x, w, *window, ALL, out0=outs[0], out1=outs[1], out2=outs[2]
    )
    reference = backward(grad, x, w, *window, ALL)
    assert all(torch.equal(a, b) for a, b in zip(outs, reference, strict=True))


X = (2, 4, 5, 6)
W = (4, 1, 3, 3)


@pytest.mark.parametrize(
    ("x", "w", "options", "words"),
    [
        ((4, 5), W, {}, ["input", "[4, 5]"]),
        ((1, 2, 4, 5, 6), W, {}, ["input", "[1, 2, 4, 5, 6]"]),
        (X, (4, 3, 3), {}, ["weight", "[4, 3, 3]"]),
        (X, (4, 2, 3, 3), {}, ["weight", "[4, 2, 3, 3]"]),
        (X, (6, 1, 3, 3), {}, ["weight.size(0)", "4 channels", "[6, 1, 3, 3]"]),
        (X, (0, 1, 3, 3), {}, ["weight.size(0)", "[0, 1, 3, 3]"]),
        (X, (4, 1, 0, 3), {}, ["weight", "[4, 1, 0, 3]"]),
        ((2, 0, 5, 6), W, {}, ["input", "channel", "[2, 0, 5, 6]"]),
        (X, W, {"stride": (0, 1)}, ["stride", "positive", "[0, 1]"]),
        (X, W, {"stride": (1, -2)}, ["stride", "positive", "[1, -2]"]),
        (X, W, {"padding": (0, -1)}, ["padding", "negative", "[0, -1]"]),
        (X, W, {"dilation": (1, 0)}, ["dilation", "positive", "[1, 0]"]),
        (X, W, {"stride": [1, 2, 3]}, ["stride", "[1, 2, 3]"]),
        (X, W, {"padding": (1 << 40, 0)}, ["padding", "2^31", str(1 << 40)]),
        (X, W, {"dilation": (3, 1)}, ["height", "7", "5"]),
        (X, (4, 1, 3, 9), {"padding": (0, 1)}, ["width", "9", "8"]),
        (X, W, {"bias": (3,)}, ["bias", "[4]", "[3]"]),
        (X, W, {"bias": (4, 1)}, ["bias", "[4]", "[4, 1]"]),
    ],
)
def test_bad_shapes_are_refused_by_name_and_value(
    x: tuple[int, ...], w: tuple[int, ...], options: dict, words: list[str], device: str
) -> None:
    """Every refusal names the operator, the argument and what was given; Meta says the same."""
    messages = []
    for where in (device, "meta"):
        given = dict(options)
        if "bias" in given:
            given["bias"] = torch.randn(given["bias"], device=where)
        with pytest.raises(RuntimeError) as caught:
            op(torch.randn(x, device=where), torch.randn(w, device=where), **given)
        messages.append(str(caught.value).splitlines()[0])
    assert messages[0] == messages[1]
    assert messages[0].startswith("depthwise_conv2d_ext(): ")
    assert all(word in messages[0] for word in words), messages[0]


def test_other_dtypes_are_refused_by_name(device: str) -> None:
    """Integers, complex numbers, and operands that do not agree."""
    x, w = torch.randn(X, device=device), torch.randn(W, device=device)
    for dtype in (torch.int32, torch.complex64, torch.bool):
        with pytest.raises(RuntimeError, match=r"depthwise_conv2d_ext\(\): expected input to be"):
            op(x.to(dtype), w.to(dtype))
    with pytest.raises(RuntimeError, match="expected weight to have the input's dtype"):
        op(x, w.double())
    with pytest.raises(RuntimeError, match="expected bias to have the input's dtype"):
        op(x, w, torch.zeros(4, device=device, dtype=torch.half))
    with pytest.raises(RuntimeError, match=r"_backward\(\): expected grad_output to have the inp"):
        grad = torch.zeros(2, 4, 3, 4, device=device, dtype=torch.double)
        backward(grad, x, w, (1, 1), (0, 0), (1, 1), ALL)


def test_backward_refuses_a_gradient_of_another_shape(device: str) -> None:
    """It names itself, grad_output and both sizes."""
    x, w = torch.randn(X, device=device), torch.randn(W, device=device)
    for shape in ((2, 4, 3, 5), (4, 3, 4), (1, 4, 3, 4)):
        with pytest.raises(RuntimeError) as caught:
            grad = torch.zeros(shape, device=device)
            backward(grad, x, w, (1, 1), (0, 0), (1, 1), ALL)
        message = str(caught.value)
        assert "depthwise_conv2d_ext_backward(): expected grad_output" in message
        assert "[2, 4, 3, 4]" in message
        assert str(list(shape)) in message


def test_a_tensor_of_another_device_is_refused_before_it_is_read(device: str) -> None:
    """A meta tensor has no memory; conv2d itself lets one through."""
    x, w = torch.randn(X, device=device), torch.randn(W, device=device)
    for operands in ((x, w.to("meta")), (x, w, torch.zeros(4, device="meta"))):
        with pytest.raises(RuntimeError, match="device"):
            op(*operands)
    with pytest.raises(RuntimeError, match="device"):
        grad = torch.zeros(2, 4, 3, 4, device="meta")
        backward(grad, x, w, (1, 1), (0, 0), (1, 1), ALL)


def capabilities() -> list[str]:
    """Those of this processor. Another one, asked for, ends the process."""
    environment = {k: v for k, v in os.environ.items() if k != "ATEN_CPU_CAPABILITY"}
    program = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    told = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    known = ["default", "avx2", "avx512"]
    highest = told.strip().lower()
    return known[: known.index(highest) + 1] if highest in known else ["default"]


def test_every_cpu_capability_gives_the_same_values() -> None:
    """The kernels are compiled three times; ATEN_CPU_CAPABILITY picks one for a process."""
    program = (
        "import sys, torch\n"
        "torch.manual_seed(0)\n"
        "x = torch.randn(2, 19, 9, 23); w = torch.randn(19, 1, 3, 5)\n"
        "sums = [torch.backends.cpu.get_cpu_capability().replace(' ', '')]\n"
        "for f in (torch.contiguous_format, torch.channels_last):\n"
        "  for d in (torch.float32, torch.float64, torch.float16, torch.bfloat16):\n"
        "    a = x.to(d).contiguous(memory_format=f).requires_grad_()\n"
        "    b = w.to(d).requires_grad_()\n"
        "    y = torch.depthwise_conv2d_ext(a, b, None, 1, (1, 2))\n"
        "    g = torch.autograd.grad(y, (a, b), torch.ones_like(y))\n"
        "    sums += [t.double().abs().sum().item() for t in (y, *g)]\n"
        "print(*sums)\n"
    )
    results = {}
    for capability in capabilities():
        environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
        name, *sums = run.stdout.split()
        results[name] = torch.tensor([float(value) for value in sums])
    reference = next(iter(results.values()))
    for sums in results.values():
        torch.testing.assert_close(sums, reference, rtol=1e-4, atol=0)


SCARCE = """
import os, resource, sys, torch
x, w = torch.ones(1, 1, 1, 1, dtype=torch.half), torch.ones(1, 1, 1, 1, dtype=torch.half)
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * os.sysconf("SC_PAGE_SIZE") + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
y = torch.depthwise_conv2d_ext(x, w, padding=(0, 1 << 25))
assert y.shape == (1, 1, 1, (1 << 26) + 1) and y.sum() == 1
"""


@pytest.mark.unsanitized("it limits addresses, of which AddressSanitizer takes 16 TB")
def test_scratch_that_cannot_be_had_is_told_by_operator_and_sizes() -> None:
    """Half precision of 128 MB; the kernel may need more than 200 MB for it, and never 2 GB."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for megabytes in (200, 2000):
        run = subprocess.run(
            [sys.executable, "-c", SCARCE, str(megabytes << 20)],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if megabytes == 2000 or run.returncode == 0:
            assert run.returncode == 0, run.stderr
            continue
        assert "RuntimeError: depthwise_conv2d_ext(): out of memory" in run.stderr, run.stderr
        assert "input of size [1, 1, 1, 1]" in run.stderr
        assert "padding [0, 33554432]" in run.stderr
