"""The shapes that the depthwise benchmarks time: the suites, and rows drawn from a seed."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

Pair = tuple[int, int]


@dataclass(frozen=True)
class Row:
    """One shape: [N, C, H, W], and by height and width window, stride, padding and dilation."""

    name: str
    size: tuple[int, int, int, int]
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair = (1, 1)
    multiplier: int = 1

    @property
    def output(self) -> Pair:
        """Height and width of the output; below 1 where the window does not fit."""
        height, width = (
            (self.size[2 + i] + 2 * self.padding[i] - self.dilation[i] * (self.kernel[i] - 1) - 1)
            // self.stride[i] + 1 for i in (0, 1)
        )  # fmt: skip
        return height, width

    @property
    def elements(self) -> Pair:
        """Of the input and of the output."""
        n, c, h, w = self.size
        return n * c * h * w, n * c * self.multiplier * math.prod(self.output)

    def useful_flop(self, which: str) -> int:
        """Multiplications and additions of one pass with taps inside the image."""
        n, c, *_ = self.size
        taps = math.prod(self._live_taps(i) for i in (0, 1))
        return 2 * n * c * self.multiplier * taps * (2 if which == "backward" else 1)

    def _live_taps(self, i: int) -> int:
        """Pairs of an output position and a tap inside the image, along one dimension."""
        starts = (o * self.stride[i] - self.padding[i] for o in range(self.output[i]))
        return sum(
            0 <= start + k * self.dilation[i] < self.size[2 + i]
            for start in starts
            for k in range(self.kernel[i])
        )


def square(
    name: str, n: int, c: int, hw: int, k: int, s: int, p: int, d: int = 1, m: int = 1
) -> Row:
    """A row with a square image and window."""
    return Row(name, (n, c, hw, hw), (k, k), (s, s), (p, p), (d, d), m)


CUDA_SUITE = (
    square("mobilenet 32@112 k3", 128, 32, 112, 3, 1, 1),
    square("mobilenet 96@112 k3s2", 128, 96, 112, 3, 2, 1),
    square("mobilenet 144@56 k3", 128, 144, 56, 3, 1, 1),
    square("mobilenet 384@14 k3", 128, 384, 14, 3, 1, 1),
    square("mobilenet 960@7 k3", 128, 960, 7, 3, 1, 1),
    square("efficientnet 144@56 k5s2", 128, 144, 56, 5, 2, 2),
    square("efficientnet 240@28 k5", 128, 240, 28, 5, 1, 2),
    square("efficientnet 672@14 k5s2", 128, 672, 14, 5, 2, 2),
    square("efficientnet 1152@7 k5", 128, 1152, 7, 5, 1, 2),
    square("convnext 96@56 k7", 64, 96, 56, 7, 1, 3),
    square("convnext 192@28 k7", 64, 192, 28, 7, 1, 3),
    square("convnext 384@14 k7", 64, 384, 14, 7, 1, 3),
    square("convnext 768@7 k7", 64, 768, 7, 7, 1, 3),
    square("replk 128@56 k31", 64, 128, 56, 31, 1, 15),
    square("replk 256@28 k29", 64, 256, 28, 29, 1, 14),
    square("replk 512@14 k27", 64, 512, 14, 27, 1, 13),
    square("replk 1024@7 k13", 64, 1024, 7, 13, 1, 6),
    Row("slak 96@56 k51x5", (64, 96, 56, 56), (51, 5), (1, 1), (25, 2)),
    square("xception 728@65 k3d2", 8, 728, 65, 3, 1, 2, d=2),
    square("van 64@56 k7d3", 64, 64, 56, 7, 1, 9, d=3),
    Row("image 64@1024x1008 k5", (8, 64, 1024, 1008), (5, 5), (1, 1), (2, 2)),
    Row("sequence 3072@1x202 k1x3", (128, 3072, 1, 202), (1, 3), (1, 1), (0, 0)),
    square("multiplier 2, 32@112 k3", 32, 32, 112, 3, 1, 1, m=2),
    Row("odd 33@128x513 k3", (16, 33, 128, 513), (3, 3), (1, 1), (1, 1)),
    square("latency 144@56 k3", 1, 144, 56, 3, 1, 1),
    square("latency 960@7 k3", 1, 960, 7, 3, 1, 1),
)
# The CUDA suite's shapes at a CPU's batch sizes, by the networks that they come from.
CPU_BATCHES = {"mobilenet": (1, 16), "efficientnet": (1, 16), "convnext": (1, 16),
               "replk": (1,), "slak": (1,), "xception": (1,), "van": (1,)}  # fmt: skip
CPU_SUITE = (
    *(
        replace(row, name=f"{row.name} n{n}", size=(n, *row.size[1:]))
        for row in CUDA_SUITE
        for n in CPU_BATCHES.get(row.name.split()[0], ())
    ),
    square("yolo 128@80 k3 n1", 1, 128, 80, 3, 1, 1),
)


@dataclass(frozen=True)
class Limits:
    """What is drawn: the largest batch; least and most elements of input and output."""

    batch: int
    elements: Pair


CUDA_LIMITS = Limits(256, (500_000, 200_000_000))
CPU_LIMITS = Limits(16, (20_000, 8_000_000))
MOST_CHANNELS, MOST_SIDE, MOST_WINDOW, MOST_DILATION = 4096, 1024, 31, 8


def drawn(seed: int, count: int, limits: Limits) -> list[Row]:
    """`count` rows; the same for the same seed, and the first ones also for another count."""
    return [_drawn(random.Random(f"{seed} {i}"), limits) for i in range(count)]


def _drawn(source: random.Random, limits: Limits) -> Row:
    """A row whose window fits and whose tensors are within the limits."""
    while True:
        row = _candidate(source, limits)
        least, most = limits.elements
        if min(row.output) >= 1 and least <= min(row.elements) and max(row.elements) <= most:
            return row


def _candidate(source: random.Random, limits: Limits) -> Row:
    """Sizes on a logarithmic scale; half the windows are square, a quarter 1 x k and k x 1."""
    size = (_scaled(source, 1, limits.batch), _scaled(source, 1, MOST_CHANNELS),
            _scaled(source, 1, MOST_SIDE), _scaled(source, 1, MOST_SIDE))  # fmt: skip
    k, other = _scaled(source, 2, MOST_WINDOW), _scaled(source, 1, MOST_WINDOW)
    kernel = source.choice(((k, k), (k, k), (k, k), (k, k), (k, other), (other, k), (1, k), (k, 1)))
    step = source.choice((1, 1, 1, 1, 2, 3, 4, 0))
    stride = (step, step) if step else kernel
    apart = source.choice((1, 1, 1, source.randint(2, MOST_DILATION)))
    dilation = (apart if kernel[0] > 1 else 1, apart if kernel[1] > 1 else 1)
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    # As large an output as input, causal (cut by the caller), or no padding.
    half, whole = source.choice(((1, 2), (1, 2), (1, 1), (0, 1)))
    padding = (reach[0] * half // whole, reach[1] * half // whole)
    multiplier = source.choice((1, 1, 1, 1, 1, 1, 2, 3))
    row = Row("", size, kernel, stride, padding, dilation, multiplier)
    return replace(row, name=_name(row))


def _scaled(source: random.Random, least: int, most: int) -> int:
    """A whole number between, the logarithm evenly distributed."""
    return int(least * math.exp(source.random() * math.log((most + 1) / least)))


def _name(row: Row) -> str:
    """What the row is, short: batch x channels @ height x width, window, and what is not 1 or 0."""
    n, c, h, w = row.size
    parts = [f"{n}x{c}@{h}x{w} k{row.kernel[0]}x{row.kernel[1]}"]
    pairs = (("s", row.stride, 1), ("p", row.padding, 0), ("d", row.dilation, 1))
    for letter, pair, usual in pairs:
        if pair != (usual, usual):
            parts.append(letter + "x".join(map(str, dict.fromkeys(pair))))
    return " ".join([*parts, *([f"m{row.multiplier}"] if row.multiplier > 1 else [])])
