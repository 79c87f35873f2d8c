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
    cure = ""  # what is next where an error of the class does not say
    # Further errors of the same run; the message shows them after this one.
    also: tuple[ForkError, ...] = ()

    def __init_subclass__(cls, exit_code: int | None = None) -> None:
        cls.exit_code = exit_code or cls.exit_code

    def __init__(
        self, what: str, *, where: str = "", why: str = "", next: str = "", kind: str = ""
    ) -> None:
        super().__init__(what)
        self.what, self.where, self.why, self.kind = what, where, why, kind
        self.next = next or self.cure

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


def listed(names: Sequence[str]) -> str:
    """At most ten names, one a line, and how many more there are."""
    more = [f"and {len(names) - 10} more"] if len(names) > 10 else []
    return "\n".join([*names[:10], *more])


class UsageError(ForkError, exit_code=2):
    """Options that contradict one another or name nothing."""


class AdditionsError(ForkError, exit_code=10):
    """An additions directory that cannot be read: malformed YAML, duplicate keys, bad schema."""

    cure = "correct it; docs/additions.md says what each file has"


class CollisionError(ForkError, exit_code=11):
    """An added operator that exists already, in the additions or upstream."""


class NeedsSourceLaneError(ForkError, exit_code=12):
    """Something that an official wheel cannot take and a source build can."""


class DerivativeError(ForkError, exit_code=13):
    """A derivative formula that the codegen refuses."""


class KernelError(ForkError, exit_code=14):
    """Declared and defined kernels differ: missing, undeclared or of another signature."""


class CompileError(ForkError, exit_code=15):
    """The compiler or the linker refused a file."""


class ToolMissingError(ForkError, exit_code=16):
    """A compiler, toolkit, interpreter or header that the build needs is not there."""


class ToolkitMismatchError(ForkError, exit_code=17):
    """A CUDA toolkit whose major version is not the base's."""


class PatchError(ForkError, exit_code=18):
    """A patch that is malformed, not in the series, unexplained, or touches what it may not."""

    cure = "correct it; patches/README.md says how a patch is written"


class PatchConflictError(ForkError, exit_code=19):
    """A patch that does not fit a release."""


class UnknownReleaseError(ForkError, exit_code=20):
    """A version that ci/releases.toml does not pin."""


class DownloadError(ForkError, exit_code=21):
    """A download that failed or broke off."""


class HashMismatchError(ForkError, exit_code=22):
    """A file whose sha256 is not the pinned one."""


class BaseRefusedError(ForkError, exit_code=23):
    """A base that is not what it says: wrong commit, headers not of its YAML, not a torch."""

    cure = "take another: --torch names a release, --base a wheel, --source sources"


class OutputError(ForkError, exit_code=30):
    """An output that cannot be written: read-only, disk full."""


class BusyError(ForkError, exit_code=31):
    """Another run holds what this one needs."""


class StateError(ForkError, exit_code=32):
    """Files that were changed behind torchfork's back, or nothing to undo."""


class KilledError(ForkError, exit_code=33):
    """The code generator was killed, or got no memory."""


class VerificationError(ForkError, exit_code=40):
    """The finished wheel does not keep its promise."""


class RebaseError(ForkError, exit_code=41):
    """Additions that cannot be carried to some release as they are."""


class CitizenshipError(ForkError, exit_code=42):
    """An operator that lacks something which PyTorch's own have, and nobody gives the reason."""


class InternalError(ForkError, exit_code=70):
    """A fault of torchfork itself."""
