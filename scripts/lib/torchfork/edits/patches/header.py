"""Why a patch exists, when it can go and what upstream has of it: the fields of every patch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import PatchError

REQUIRED = ("Why", "Until", "Upstream")
_FIELD = re.compile(r"(Why|Until|Upstream): (\S.*)")
NONE = "none"


@dataclass(frozen=True)
class Header:
    """What a patch says of itself.

    subject: one line, as a commit's.
    why: the reason for which it exists.
    until: what must happen for it to go.
    upstream: upstream's commit, pull request or issue of the same change; 'none' where there is
        nothing.
    """

    subject: str
    why: str
    until: str
    upstream: str

    def message(self) -> str:
        """The commit message that says it."""
        return f"{self.subject}\n\n{self.body()}"

    def body(self) -> str:
        """The fields, a line each; line breaks inside a field are indented."""
        fields = zip(REQUIRED, (self.why, self.until, self.upstream), strict=True)
        return "".join(f"{key}: {text.replace(chr(10), chr(10) + ' ')}\n" for key, text in fields)


def parse(subject: str, body: str, where: str) -> Header:
    """Read the fields of a commit message. Raises PatchError for one that is missing or unknown."""
    fields: dict[str, list[str]] = {}
    key = ""
    for line in body.strip("\n").split("\n"):
        found = _FIELD.fullmatch(line)
        if found and found[1] not in fields:
            key = found[1]
            fields[key] = [found[2]]
        elif key and line.startswith(" "):
            fields[key].append(line[1:])
        else:
            raise PatchError(
                "a line of a patch's header belongs to none of its fields",
                where=where,
                why=line or "(an empty line)",
                next=f"each of {', '.join(REQUIRED)} once, as 'Why: text'; further lines of a "
                "field start with a blank",
            )
    return make(subject, {k.lower(): "\n".join(v) for k, v in fields.items()}, where)


def make(subject: str, fields: dict[str, str], where: str) -> Header:
    """A header with every field filled. Raises PatchError for an unexplained patch."""
    missing = [key for key in REQUIRED if not fields.get(key.lower(), "").strip()]
    if missing or not subject.strip():
        raise PatchError(
            "an unexplained patch: it lacks " + ", ".join(missing or ["a subject"]),
            where=where,
            why="who carries it to the next release must know why it exists and when it can go",
            next="add the fields; 'Upstream: none' where upstream has nothing like it",
        )
    return Header(subject.strip(), *(fields[key.lower()].strip("\n") for key in REQUIRED))
