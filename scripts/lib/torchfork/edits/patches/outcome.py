"""What became of each patch on a tree, and what an error says where one does not apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ...errors import PatchConflictError
from .series import Entry


class State(str, Enum):
    """How a patch stands to a tree."""

    APPLIES = "applies"
    APPLIED = "applied already"
    LANDED = "landed upstream"
    MERGED = "needs a 3-way merge"
    CONFLICTS = "conflicts"
    NOT_HERE = "not for this release and lane"


# States in which a build goes on and patches/ wants an edit: what the matrix calls them.
_NEEDS_EDIT = {State.LANDED: "patch landed upstream", State.MERGED: "patch needs refresh"}


@dataclass(frozen=True)
class Conflict:
    """The first place at which a patch does not fit.

    where: 'patches/x.patch:17', the hunk or hook in our file.
    file: upstream's file.
    why: what is wrong there.
    ours: what the patch wants to see and to change.
    theirs: what the file has there now; '' where nothing comes near.
    marked: the files with both sides between marks, where a merge was possible.
    """

    where: str
    file: str
    why: str
    ours: str
    theirs: str
    marked: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """One patch on one tree.

    texts: what the patch changes here (None: the file goes); empty for LANDED, CONFLICTS and
        NOT_HERE.
    note: one line for people: the reason of a state that is not plain.
    upstream: upstream's commit or pull request of the same change, where the patch knows one.
    """

    entry: Entry
    state: State
    texts: Mapping[str, str | None] = field(default_factory=dict)
    note: str = ""
    upstream: str = "none"
    why: str = ""
    conflict: Conflict | None = None

    @property
    def name(self) -> str:
        """The patch's name in the series."""
        return self.entry.name

    def error(self, version: str, lane: str, command: str = "") -> PatchConflictError:
        """The conflict as an error. command: what resolves it, where `patch edit` is not it."""
        found = self.conflict
        assert found is not None
        if not self.entry.is_diff:
            # There is nothing to merge: the folder says in words where its lines go.
            command = (
                f"correct it there, then: scripts/torchfork patch list --torch {version} "
                f"--lane {lane}"
            )
        command = command or f"scripts/torchfork patch edit --torch {version} --lane {lane}"
        theirs = found.theirs or "(nothing like it)\n"
        return PatchConflictError(
            f"the patch '{self.name}' does not fit torch {version}: {found.why}",
            where=f"{found.where}, upstream's {found.file}",
            why=f"the patch exists because: {self.why}\n"
            f"upstream has of it: {self.upstream}\n"
            f"--- the patch:\n{found.ours.rstrip()}\n"
            f"--- torch {version}:\n{theirs.rstrip()}",
            next=command,
            kind="patch conflicts",
        )


@dataclass(frozen=True)
class Report:
    """All patches of a series on one tree.

    texts: every file that the patches together change, by path, with its new text (None: the file
        goes). Empty where a patch conflicts: all or nothing.
    """

    version: str
    lane: str
    outcomes: tuple[Outcome, ...]
    texts: Mapping[str, str | None]
    variants: int

    @property
    def ok(self) -> bool:
        """Whether nothing conflicts."""
        return not self.of(State.CONFLICTS)

    def of(self, *states: State) -> list[Outcome]:
        """The outcomes of these states."""
        return [outcome for outcome in self.outcomes if outcome.state in states]

    def attention(self) -> list[str]:
        """A line for each patch that works here and still needs an edit of patches/."""
        return [f"{o.name}: {o.note}; {self._advice(o)}" for o in self.of(*_NEEDS_EDIT)]

    def objections(self) -> list[PatchConflictError]:
        """An error for each patch that is not as it should be for this release, in their order.

        Stricter than errors(): a build goes on with a patch that landed or was merged; who carries
        the series to a release has to know.
        """
        conflicts = iter(self.errors())
        return [
            next(conflicts) if o.state is State.CONFLICTS else self._needs_edit(o)
            for o in self.of(State.CONFLICTS, *_NEEDS_EDIT)
        ]

    def _needs_edit(self, outcome: Outcome) -> PatchConflictError:
        release = self.version.partition("+")[0]
        return PatchConflictError(
            f"the patch '{outcome.name}' {outcome.state.value} on torch {release}"
            if outcome.state is State.MERGED
            else f"the patch '{outcome.name}' landed upstream: torch {release} has it",
            where=outcome.entry.where(),
            why=f"{outcome.note}\nthe patch exists because: {outcome.why}",
            next=self._advice(outcome),
            kind=_NEEDS_EDIT[outcome.state],
        )

    def _advice(self, outcome: Outcome) -> str:
        release = self.version.partition("+")[0]
        if outcome.state is State.LANDED:
            return f"end its range before {release} in the series (<{release}), or drop it"
        return (
            f"scripts/torchfork patch edit --torch {release} --lane {self.lane}, "
            "then scripts/torchfork patch refresh"
        )

    def errors(self) -> list[PatchConflictError]:
        """An error for each patch that conflicts."""
        release = self.version.partition("+")[0]
        return [outcome.error(release, self.lane) for outcome in self.of(State.CONFLICTS)]

    def require(self) -> None:
        """Raise PatchConflictError for the first patch that conflicts."""
        for error in self.errors():
            raise error
