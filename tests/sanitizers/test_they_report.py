"""The sanitizers see the faults that they are for, and a fault fails the test that commits it.

Runs on the wheel of `faults/`, whose kernels are compiled by sanitizing-g++ as the operators' are.
"""

from __future__ import annotations

import faulthandler
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sanitizer_reports import REPORTS, capability

# The tensor's length in floats: odd, and no multiple of a vector's.
LENGTH = 37
KERNEL = "aten/src/ATen/native/cpu/SanitizerFaultKernel.cpp"
# Each fault and what its report says.
FAULTS = {
    # not called an overflow where the first of many bytes is the tensor's own
    "read behind": ("ERROR: AddressSanitizer", "READ of size", "148-byte region", KERNEL),
    "write behind": ("ERROR: AddressSanitizer", "WRITE of size", "148-byte region", KERNEL),
    "read lanes behind": ("AddressSanitizer: heap-buffer-overflow", "READ of size", KERNEL),
    "write lanes behind": ("AddressSanitizer: heap-buffer-overflow", KERNEL),
    "read halves behind": ("AddressSanitizer: heap-buffer-overflow", "READ of size", KERNEL),
    "write doubles behind": ("AddressSanitizer: heap-buffer-overflow", KERNEL),
    "read before": ("AddressSanitizer: heap-buffer-overflow", "READ of size 4", KERNEL),
    "thread behind": ("AddressSanitizer: heap-buffer-overflow", "Thread T", KERNEL),
    "copy behind": ("AddressSanitizer: heap-buffer-overflow", "READ of size 152", KERNEL),
    "scratch behind": ("AddressSanitizer: heap-buffer-overflow", "WRITE of size 4", KERNEL),
    "freed scratch": ("AddressSanitizer: heap-use-after-free", "READ of size 4", KERNEL),
    "freed twice": ("AddressSanitizer: attempting double-free", KERNEL),
    "freed tensor": (
        "AddressSanitizer: heap-use-after-free", "WRITE of size 4", "native/SanitizerFault.cpp",
    ),
    "local behind": ("AddressSanitizer: stack-buffer-overflow", "READ of size 4", KERNEL),
    "local of another scope": ("AddressSanitizer: stack-use-after-scope", KERNEL),
    "index": (KERNEL, "runtime error: index 8 out of bounds for type 'float [8]'"),
    "product": (KERNEL, "runtime error: signed integer overflow: ", " * 37 cannot be"),
    "shift": (KERNEL, "runtime error: shift exponent 64 is too large for 64-bit type"),
    "division": (KERNEL, "runtime error: division by zero"),
    "conversion": (KERNEL, "runtime error: 3e+09 is outside the range of representable values"),
    "conversion of NaN": (KERNEL, "runtime error: nan is outside the range"),
    "misaligned": (KERNEL, "runtime error: load of misaligned address"),
    "null": (KERNEL, "runtime error: reference binding to null pointer of type 'float'"),
    "pointer": (KERNEL, "runtime error: pointer index expression with base"),
    "no bool": (KERNEL, "runtime error: load of value 2, which is not a valid value for type"),
}  # fmt: skip


def reported(fault: str) -> str:
    """What a process of its own reports when it commits a fault."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            faulthandler.disable()
            torch.set_num_threads(2)
            torch.sanitizer_fault(torch.zeros(LENGTH), fault)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    found = [path for path in REPORTS.glob("*.*") if path.suffix == f".{child}"]
    text = "".join(path.read_text(encoding="utf-8") for path in found)
    for path in found:
        path.unlink()
    # A report does not end a process; but x86 goes on to divide by zero, and that does.
    ended = 1 if fault == "division" and platform.machine() == "x86_64" else 0
    assert os.waitstatus_to_exitcode(status) == ended, text
    return text


def test_the_kernels_of_the_capability_that_was_asked_for_run() -> None:
    assert capability() == os.environ["ATEN_CPU_CAPABILITY"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_reported_with_its_file(fault: str) -> None:
    text = reported(fault)
    assert not [part for part in FAULTS[fault] if part not in text], text


def test_what_is_no_fault_is_not_reported() -> None:
    assert reported("nothing") == ""


def test_an_exception_of_a_kernel_is_still_an_exception() -> None:
    with pytest.raises(RuntimeError, match="there is no fault 'unheard of'"):
        torch.sanitizer_fault(torch.zeros(LENGTH), "unheard of")


@pytest.mark.parametrize("process", ["its own", "another"])
def test_a_report_fails_the_test_in_which_it_was_made(process: str, tmp_path: Path) -> None:
    """And no other, of a test's own process and of one that it starts."""
    fault = "import torch; torch.sanitizer_fault(torch.zeros(5), 'product')"
    if process == "another":
        fault = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {fault!r}])"
    tests = tmp_path / "test_it.py"
    tests.write_text(
        f"def test_before(): pass\ndef test_at_fault(): {fault}\ndef test_after(): pass\n"
    )
    reports = tmp_path / "reports"
    reports.mkdir()
    options = {
        name: os.environ[name].replace(str(REPORTS), str(reports))
        for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TORCHFORK_SANITIZER_REPORTS")
    }
    command = [sys.executable, "-m", "pytest", "-p", "sanitizer_reports", "-p", "no:cacheprovider",
               "-rA", "--rootdir", str(tmp_path), str(tests)]  # fmt: skip
    run = subprocess.run(
        command, env={**os.environ, **options}, cwd=tmp_path, capture_output=True, text=True
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert "PASSED test_it.py::test_before" in run.stdout
    assert "FAILED test_it.py::test_at_fault" in run.stdout
    assert "PASSED test_it.py::test_after" in run.stdout
    assert "runtime error: signed integer overflow" in run.stdout
