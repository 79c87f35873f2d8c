#!/usr/bin/env python3
"""Calls the operators with arguments that are mostly wrong, in processes of their own.

    python tests/ops/fuzz.py --tuples 1000000 [--device cuda] [--seed 1] [--jobs 2]

Of every tuple of arguments: the call succeeds or raises RuntimeError, TypeError or one of their
kinds; the message names the operator and holds no internal assertion; the same call on the meta
device ends the same way, with the same words. Of every process: no signal ends it, and a good call
at its end gives what it gave at its beginning, so that no error stuck (to a CUDA context, say).
Exit status 1 and a list when anything else happened; each entry says how to see it again.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEMORY = 6 << 30  # of address space beyond what the import took: an absurd size fails at once
TUPLES_A_PROCESS = 25_000
# Sizes that are valid, and more than there is here.
TOO_LARGE = (
    r"can't allocate memory|out of memory|bad_alloc|(Storage size|Stride) calculation overflowed"
)
# Beyond 62 bits: the CPU's registration turns lists into integers before the operator is reached.
NO_INTEGER = r"SymIntArrayRef expected to contain only concrete integers"
# A tensor where a number or a list of them belongs: on meta it has none.
NO_NUMBERS = (
    r"Overloaded torch operator invoked from Python failed to match"
    r"|Tensor\.item\(\) cannot be called on meta tensors"
)
# Upstream's fallback for negative views, of any operator's out= when an input is a nested tensor.
UPSTREAMS_ASSERTION = r"cloned_mutable_input\.is_same\(returned_output\)"
# What upstream says of any operator without its name, where no operator's own check comes first.
UPSTREAMS_WORDS = [
    TOO_LARGE,
    # arguments on their way from Python
    NO_INTEGER,
    r"Tried to convert a List with \d+ elements to a fixed-size array",
    r"Expected a (proper )?Tensor .* None \(.*an undefined Tensor in C\+\+\)",
    # TensorIterator: shapes, dtypes, devices, layouts, overlapping memory
    r"The size of tensor a \(\d+\) must match the size of tensor b",
    r"output with shape .* doesn't match the broadcast shape",
    r"result type \w+ can't be cast to the desired output type",
    r"Promotion for [\w, ]+ [Tt]ypes is not supported|promoteTypes with quantized numbers",
    r"Creation of quantized tensor requires quantized dtype",
    r"Expected all tensors to be on the same device, but found at least two devices",
    r"Trying to pass too many \w+ scalars to non-\w+ kernel",
    r"unsupported tensor layout|NYI: broadcasting NT with T",
    r"dense_to_jagged",  # a nested tensor beside another
    r"The expanded size of the tensor .* must match the existing size",
    UPSTREAMS_ASSERTION,
    r"unsupported operation: (some elements|more than one element) of the",
    # autograd
    r"a (leaf Variable|view of a leaf Variable) that requires grad is being used in an in-place",
    r"Inplace update to inference tensor outside InferenceMode",
    r"Inference tensors cannot be saved for backward",
]
# What upstream raises of any operator that is no RuntimeError or TypeError, and why.
UPSTREAMS_KINDS = [
    (OverflowError, "int too big to convert"),  # a Scalar beyond 64 bits
    (ValueError, "^Overflow when unpacking long"),  # a size beyond 64 bits
    (ValueError, "^NestedTensor "),  # torch.nested's Python
    (AssertionError, "must be a NestedTensor"),
]


@dataclass
class Outcome:
    """How a call ended: the results' metadata, or the kind of error and its words."""

    kind: str
    words: str

    @property
    def refused(self) -> bool:
        """Whether it raised."""
        return self.kind != "ok"


def described(result: Any) -> str:
    """Sizes, strides and dtypes of what was returned."""
    if isinstance(result, (tuple, list)):
        return ", ".join(map(described, result))
    if result is None:
        return "None"
    if result.layout.__str__() != "torch.strided" or result.is_nested:
        return f"{result.dtype} {result.layout}"
    return f"{result.dtype} {tuple(result.shape)} {result.stride()}"


def made(value: Any, device: str) -> Any:
    """A spec's tensor; anything else as it is."""
    from fuzz_targets import Spec

    return value.make(device) if isinstance(value, Spec) else value


def outcome(call: Any, args: list[Any], kwargs: dict[str, Any], device: str) -> Outcome | None:
    """Call on a device; None when the arguments themselves cannot be made there."""
    try:
        args = [made(a, device) for a in args]
        kwargs = {k: made(v, device) for k, v in kwargs.items()}
    except Exception:
        return None  # a layout that this shape, dtype or device has not: errors of every kind
    try:
        return Outcome("ok", described(call(*args, **kwargs)))
    except Exception as error:
        kind, words = type(error).__name__, str(error)
        expected = isinstance(error, (RuntimeError, TypeError, MemoryError)) or any(
            isinstance(error, of) and re.search(pattern, words) for of, pattern in UPSTREAMS_KINDS
        )
        return Outcome(kind if expected else f"unexpected {kind}", words)


def fault(name: str, here: Outcome, there: Outcome | None, exotic: bool) -> str | None:
    """What is wrong with how a call ended, or None."""
    if not here.refused:
        if there is None or exotic:
            return None
        if there.refused:
            known = re.search(NO_NUMBERS, there.words)
            return None if known else f"meta refuses what is computed: {first_line(there.words)}"
        return None if here == there else f"here: {here.words} | meta: {there.words}"
    words = here.words
    upstreams_own = re.search(UPSTREAMS_ASSERTION, words)
    if not upstreams_own and re.search(
        r"INTERNAL ASSERT|please report a bug|CUDA error", words, re.IGNORECASE
    ):
        return f"internal error: {first_line(words)}"
    if here.kind.startswith("unexpected"):
        return f"{here.kind}: {first_line(words)}"
    patterns = [*UPSTREAMS_WORDS, *(pattern for _, pattern in UPSTREAMS_KINDS)]
    upstreams = any(re.search(pattern, words) for pattern in patterns)
    if name.rstrip("_") not in words and not upstreams:
        return f"the operator is not named: {first_line(words)}"
    if there is None or exotic or here.kind == "MemoryError":
        return None
    before_ours = re.search(TOO_LARGE, words)
    if not there.refused:
        return None if before_ours else f"meta takes it: {first_line(words)}"
    before_ours = before_ours or re.search(NO_INTEGER, words) or re.search(NO_NUMBERS, there.words)
    if first_line(words) != first_line(there.words) and not before_ours:
        return f"here: {first_line(words)} | meta: {first_line(there.words)}"
    return None


def first_line(words: str) -> str:
    """Without what differs between devices and is no matter of ours."""
    line = next(iter(words.splitlines()), "")
    return re.sub(r"\b(cpu|meta|cuda(:\d+)?|CPU|Meta|CUDA)\b", "DEVICE", line)


def good_call(device: str) -> str:
    """Something of every operator, as text."""
    import torch

    x = torch.arange(60.0, device=device).view(1, 3, 4, 5) / 60
    y = torch.depthwise_conv2d_ext(x, torch.ones(3, 1, 3, 3, device=device), padding=1)
    z = torch.axpy_ext(torch.sigmoid_ext(y), x).gdh()
    cell = torch.lltm_cell(*(torch.ones(s, device=device) for s in
                             ((2, 3), (6, 5), (6,), (2, 2), (2, 2))))  # fmt: skip
    return f"{float(z.double().sum()):.9f} {float(cell[0].sum()):.9f}"


def worker(options: argparse.Namespace) -> None:
    """One process: so many tuples of a seed; prints counts and faults as JSON."""
    import torch
    from fuzz_targets import ODD, Spec, spoil, targets

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    before = good_call(options.device)
    limit_memory(options.device)
    draw, known = random.Random(options.seed), targets()
    counts: Counter[str] = Counter()
    faults: list[str] = []
    with place(options.place) as reached:
        for number in range(options.tuples):
            target = draw.choice(known)
            args, kwargs = target.valid(draw)
            for _ in range(draw.choice([1, 1, 1, 2, 3, 0])):
                if args or kwargs:
                    spoil(draw, args, kwargs)
            if number < options.skip:
                continue
            struct.pack_into("q", reached, 0, number)
            values = [*args, *kwargs.values()]
            exotic = any(isinstance(v, Spec) and (v.layout in ODD or v.device) for v in values)
            here = outcome(target.call, args, kwargs, options.device)
            if here is None:
                counts["not made"] += 1
                continue
            there = outcome(target.call, args, kwargs, "meta")
            counts["refused" if here.refused else "taken"] += 1
            wrong = fault(target.name, here, there, exotic)
            if wrong and len(faults) < 50:
                faults.append(f"tuple {number}: {target.name}(*{args}, **{kwargs})\n    {wrong}")
            counts["faults"] += wrong is not None
    if good_call(options.device) != before:
        faults.append("a good call at the end gives another result than at the beginning")
    print(json.dumps({"counts": counts, "faults": faults}))


def limit_memory(device: str) -> None:
    """More fails where it is asked for; CUDA and sanitizers reserve addresses as they like."""
    if device == "cpu" and "asan" not in os.environ.get("LD_PRELOAD", ""):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def place(path: str) -> mmap.mmap:
    """Eight bytes of a file, which outlive the process: the tuple it is at."""
    with Path(path).open("r+b") as file:
        return mmap.mmap(file.fileno(), 8)


def run_process(
    options: argparse.Namespace, seed: int, tuples: int
) -> tuple[Counter[str], list[str]]:
    """Run a worker, and another one behind the tuple that ended it."""
    counts: Counter[str] = Counter()
    faults: list[str] = []
    skip = 0
    while skip < tuples:
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"\xff" * 8)
            file.flush()
            command = [sys.executable, __file__, "--worker", "--seed", str(seed), "--tuples",
                       str(tuples), "--skip", str(skip), "--device", options.device, "--place",
                       file.name]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            (reached,) = struct.unpack("q", Path(file.name).read_bytes())
        again = f"seed {seed}, again with: {' '.join(command[1:-2])} --place FILE_OF_8_BYTES"
        if done.returncode == 0:
            report = json.loads(done.stdout.splitlines()[-1])
            return counts + Counter(report["counts"]), faults + [
                f"{text}\n    {again}" for text in report["faults"]
            ]
        how = (
            signal.Signals(-done.returncode).name
            if done.returncode < 0
            else f"exit status {done.returncode}"
        )
        last = "\n    ".join(done.stderr.strip().splitlines()[-3:])
        faults.append(f"tuple {reached} ended the process: {how}\n    {last}\n    {again}")
        if reached < 0 or len(faults) > 20:
            break
        skip = reached + 1
    return counts, faults


def main() -> int:
    """Start the processes and add up what they report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tuples", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--place", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return 0
    started = time.monotonic()
    share = min(TUPLES_A_PROCESS, -(-options.tuples // options.jobs))
    sizes = [min(share, options.tuples - first) for first in range(0, options.tuples, share)]
    counts: Counter[str] = Counter()
    faults: list[str] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        seeds = [options.seed * 1_000_000 + i for i in range(len(sizes))]
        for more, wrong in pool.map(lambda s, n: run_process(options, s, n), seeds, sizes):
            counts += more
            faults += wrong
    for text in faults:
        print(text)
    print(
        f"{options.device}: {options.tuples} tuples in {len(sizes)} processes, "
        f"{counts['taken']} taken, {counts['refused']} refused, {counts['not made']} not made, "
        f"{len(faults)} faults shown, {time.monotonic() - started:.0f} s"
    )
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
