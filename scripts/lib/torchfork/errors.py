"""The errors that end a command: what, where, why, and what to do next; one exit code a class."""

from __future__ import annotations

from collections.abc import Sequence


class ForkError(Exception):
    """Base of every error that a user can cause or cure.

    what: one sentence, names the thing that is wrong.
    where: 'file:line' in the user's own files, or the path concerned.
    why: the reason, where `what` does not say it already.
    next: the command or the edit that gets the user further.
    kind: what it is for programs, where a class has several: 'landed upstream'; never printed.
    """

    exit_code = 1
    # Further errors of the same run; the message shows them after this one.
    also: tuple[ForkError, ...] = ()

    def __init__(
        self, what: str, *, where: str = "", why: str = "", next: str = "", kind: str = ""
    ) -> None:
        super().__init__(what)
        self.what, self.where, self.why, self.next, self.kind = what, where, why, next, kind

    def render(self) -> str:
        """The message as it is printed: one labelled line for each part that is there."""
        parts = [
            ("error", self.what),
            ("where", self.where),
            ("why", self.why),
            ("next", self.next),
        ]
        lines = []
        for label, text in parts:
            if text:
                first, *rest = text.rstrip().split("\n")
                lines.append(f"{label + ':':<7}{first}")
                lines.extend(" " * 7 + line for line in rest)
        return "\n".join([*lines, *("\n" + other.render() for other in self.also)])

    def __str__(self) -> str:
        return self.render()


def combined(errors: Sequence[ForkError]) -> ForkError:
    """The first of several errors, with the others in its message."""
    first, *others = (each for error in errors for each in (error, *error.also))
    first.also = tuple(others)
    for other in others:
        other.also = ()
    return first


class UsageError(ForkError):
    """Options that contradict one another or name nothing."""

    exit_code = 2


class AdditionsError(ForkError):
    """An additions directory that cannot be read: malformed YAML, duplicate keys, bad schema."""

    exit_code = 10


class CollisionError(ForkError):
    """An added operator that exists already, in the additions or upstream."""

    exit_code = 11


class NeedsSourceLaneError(ForkError):
    """Something that an official wheel cannot take and a source build can."""

    exit_code = 12


class DerivativeError(ForkError):
    """A derivative formula that the codegen refuses."""

    exit_code = 13


class KernelError(ForkError):
    """Declared and defined kernels differ: missing, undeclared or of another signature."""

    exit_code = 14


class CompileError(ForkError):
    """The compiler or the linker refused a file."""

    exit_code = 15


class ToolMissingError(ForkError):
    """A compiler, toolkit, interpreter or header that the build needs is not there."""

    exit_code = 16


class ToolkitMismatchError(ForkError):
    """A CUDA toolkit whose major version is not the base's."""

    exit_code = 17


class PatchError(ForkError):
    """A patch that is malformed, not in the series, unexplained, or touches what it may not."""

    exit_code = 18


class PatchConflictError(ForkError):
    """A patch that does not fit a release."""

    exit_code = 19


class UnknownReleaseError(ForkError):
    """A version that ci/releases.toml does not pin."""

    exit_code = 20


class DownloadError(ForkError):
    """A download that failed or broke off."""

    exit_code = 21


class HashMismatchError(ForkError):
    """A file whose sha256 is not the pinned one."""

    exit_code = 22


class BaseRefusedError(ForkError):
    """A base that is not what it says: wrong commit, headers not of its YAML, not a torch."""

    exit_code = 23


class OutputError(ForkError):
    """An output that cannot be written: read-only, disk full."""

    exit_code = 30


class BusyError(ForkError):
    """Another run holds what this one needs."""

    exit_code = 31


class StateError(ForkError):
    """Files that were changed behind torchfork's back, or nothing to undo."""

    exit_code = 32


class VerificationError(ForkError):
    """The finished wheel does not keep its promise."""

    exit_code = 40


class RebaseError(ForkError):
    """Additions that cannot be carried to some release as they are."""

    exit_code = 41


class CitizenshipError(ForkError):
    """An operator that lacks something which PyTorch's own have, and nobody gives the reason."""

    exit_code = 42


class InternalError(ForkError):
    """A fault of torchfork itself."""

    exit_code = 70
