"""Children of the generator's process: each runs a job and reports how it failed."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any


def fork_all(jobs: list[Callable[[], None]]) -> None:
    """Run jobs in children of this process, side by side; the first failure is this one's too.

    torchgen's main parses without the keys of devices that are not built (MPS, XPU), the autograd
    generator with them, and the parser caches by path: one process cannot serve both.
    """
    started = [_fork(job) for job in jobs]
    reports = [_wait(*child) for child in started]
    for failure in reports:
        if failure is not None:
            raise CodegenFailure(failure)


class CodegenFailure(Exception):
    """A child's error, as `report` describes it."""


def _fork(job: Callable[[], None]) -> tuple[int, int]:
    """Start a job in a child; its process id and the pipe on which it reports a failure."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child:
        os.close(write_end)
        return child, read_end
    status = 0
    try:
        job()
    except BaseException as error:
        os.write(write_end, json.dumps(report(error)).encode())
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(child: int, pipe: int) -> Any:
    """The child's report, or None where it succeeded."""
    with os.fdopen(pipe, "rb") as stream:
        text = stream.read()
    status = os.waitpid(child, 0)[1]
    if text:
        return json.loads(text)
    if status:
        signal = os.waitstatus_to_exitcode(status)
        return {"type": "Killed", "message": f"the generator ended with {signal}", "trace": ""}
    return None


def report(error: BaseException) -> Any:
    """What an error says, and its trace for --debug."""
    if isinstance(error, CodegenFailure):
        return error.args[0]
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    # a parser's message keeps to 64 KiB, which is what a pipe takes without a reader
    return {
        "type": type(error).__name__, "message": str(error)[-8000:], "trace": trace[-20000:]
    }  # fmt: skip
