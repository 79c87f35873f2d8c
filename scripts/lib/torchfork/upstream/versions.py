"""Versions: what torch/version.py says, read without importing it, and the version of a graft."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from ..errors import BaseRefusedError

_GRAFTED = re.compile(r"(?:^|\.)ext\d+$")
_ASSIGNMENT = re.compile(r"^(__version__\s*=\s*)(['\"])([^'\"\n]*)\2", re.MULTILINE)


@dataclass(frozen=True)
class VersionFile:
    """What torch/version.py assigns."""

    version: str
    git_version: str
    cuda: str | None
    hip: str | None


def read_version_file(text: str, where: str) -> VersionFile:
    """Parse torch/version.py; `where` names the file in errors."""
    values: dict[str, str | None] = {}
    try:
        statements = ast.parse(text).body
    except SyntaxError as error:
        raise _refused(where, f"it is not Python: {error}") from error
    for statement in statements:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name, value = statement.targets[0].id, statement.value
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name, value = statement.target.id, statement.value or ast.Constant(None)
        else:
            continue
        constant = value.value if isinstance(value, ast.Constant) else ...
        if constant is None or isinstance(constant, str):
            values[name] = constant
    version, commit = values.get("__version__"), values.get("git_version")
    if not version or not commit:
        raise _refused(where, "it assigns no __version__ or no git_version")
    _parse(version, where)
    return VersionFile(version, commit, values.get("cuda"), values.get("hip"))


def is_grafted(version: str) -> bool:
    """Whether a version is that of a wheel that torchfork made."""
    return bool(_GRAFTED.search(version.partition("+")[2]))


def grafted_version(version: str, number: int) -> str:
    """The version of the nth graft onto a base: '2.13.0+cpu' gives '2.13.0+cpu.ext1'.

    A local part is the one place that may change: `torch==2.13.0` in the requirements of
    torchvision and others stays satisfied by it (PEP 440), which a .postN would break.
    """
    local = Version(version).local
    public = version.partition("+")[0]
    return f"{public}+{local}.ext{number}" if local else f"{public}+ext{number}"


def replace_version(text: str, version: str, where: str) -> str:
    """torch/version.py with another __version__ and nothing else changed."""
    changed, count = _ASSIGNMENT.subn(
        lambda match: f"{match[1]}{match[2]}{version}{match[2]}", text
    )
    if count != 1:
        raise _refused(where, f"__version__ is assigned {count} times where once is expected")
    return changed


def _parse(version: str, where: str) -> Version:
    try:
        return Version(version)
    except InvalidVersion as error:
        raise _refused(where, str(error)) from error


def _refused(where: str, why: str) -> BaseRefusedError:
    return BaseRefusedError("this is not torch's version file", where=where, why=why)
