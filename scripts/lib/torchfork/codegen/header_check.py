"""The header reproducibility check: nothing is grafted onto a base whose own YAML does not
regenerate its own headers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import BaseRefusedError
from ..upstream import python_names
from ..upstream.base import Base, Upstream
from ..util import files, memo
from ..util.ui import Ui
from . import client

_CODEGEN = Path(__file__).parent

# Where the headers of each generated folder lie below torch/include.
HEADER_HOMES = {
    "ATen": "ATen",
    "autograd": "torch/csrc/autograd/generated",
    "headeronly": "torch/headeronly",
}
# Written by hand upstream, though they lie among the generated ones.
HAND_WRITTEN = frozenset({"from_blob.h", "tensor.h"})


@dataclass(frozen=True)
class Wrapper:
    """The text that a release's packaging puts around installed headers, or nothing."""

    before: str = ""
    after: str = ""

    def around(self, text: str) -> str:
        """The header as the wheel carries it."""
        return self.before + text + self.after


@dataclass(frozen=True)
class Comparison:
    """How many headers were compared, and the wrapper that the release puts around them."""

    compared: int
    wrapper: Wrapper


@dataclass(frozen=True)
class CheckedBase:
    """A base that has passed the check."""

    upstream: Upstream
    wrapper: Wrapper
    compared: int


def check_headers(base: Base, cache: Path, ui: Ui) -> CheckedBase:
    """Check once per base, and per version of this check, that its YAML regenerates its headers."""
    key = _source_key(_CODEGEN / "driver.py", Path(__file__), Path(python_names.__file__))
    note = cache / "headers" / f"{base.shared_identity}-{key[:16]}.json"
    with ui.step("regenerate the base's headers") as step:
        checked = memo.recall(note, key, CheckedBase)
        if checked is None:
            guard = cache / "locks" / f"headers-{note.stem[:16]}.lock"
            with files.lock(guard, f"checking torch {base.version}", 600):
                checked = memo.remember(note, key, CheckedBase, lambda: _check(base, note))
        step.say(f"{checked.compared} headers of torch {base.version} equal what its YAML makes")
    return checked


def list_operators(base: Base, cache: Path) -> Upstream:
    """What operators a base has, from its code generator, once per base; nothing is generated."""
    key = _source_key(_CODEGEN / "driver.py", Path(python_names.__file__))
    note = cache / "operators" / f"{base.shared_identity}-{key[:16]}.json"

    def ask() -> Upstream:
        with _torchgen_home(base, note) as (home, scratch):
            return _with_attributes(client.list_operators(home, scratch), base)

    return memo.remember(note, key, Upstream, ask)


def _source_key(*modules: Path) -> str:
    return files.sha256_text(*(module.read_text("utf-8") for module in modules))


def _with_attributes(upstream: Upstream, base: Base) -> Upstream:
    def read(name: str) -> str | None:
        path = base.root / name
        return path.read_text("utf-8") if path.is_file() else None

    library = base.library("torch_python")
    compiled = [library] if library.is_file() else []
    attributes = python_names.attributes(read, base.root, compiled, base.include)
    return replace(upstream, attributes=attributes)


def _check(base: Base, note: Path) -> CheckedBase:
    with _torchgen_home(base, note) as (home, scratch):
        upstream = client.regenerate_base(home, scratch / "out", scratch, devices(base))
        comparison = compare_headers(base, scratch / "out")
    upstream = _with_attributes(upstream, base)
    return CheckedBase(upstream, comparison.wrapper, comparison.compared)


@contextlib.contextmanager
def _torchgen_home(base: Base, note: Path) -> Iterator[tuple[Path, Path]]:
    """A directory with the base's torchgen and nothing else of it; and a scratch one."""
    with files.scratch_directory(note.with_suffix("")) as directory:
        home = directory / "home"
        home.mkdir()
        (home / "torchgen").symlink_to(base.root / "torchgen")
        yield home, directory


def generated_headers(generated: Path) -> Iterator[tuple[Path, str]]:
    """Each generated header, and its path below torch/include."""
    for folder, home in HEADER_HOMES.items():
        for header in sorted((generated / folder).rglob("*.h")):
            relative = header.relative_to(generated / folder)
            if relative.parts[0] != "aoti":
                yield header, f"{home}/{relative.as_posix()}"


def detect_wrapper(installed: str, generated: str) -> Wrapper | None:
    """What one header is wrapped in, or None where it does not hold the generated text."""
    start = installed.find(generated)
    if start < 0:
        return None
    return Wrapper(installed[:start], installed[start + len(generated) :])


def devices(base: Base) -> list[str]:
    """The generator's options for devices that this base was built for beside CPU and CUDA.

    A macOS wheel was generated with --mps, which shows in RegistrationDeclarations.h.
    """
    header = base.include / "ATen" / "MPSFunctions.h"
    return ["mps"] if header.is_file() else []


def _shipped_pairs(base: Base, generated: Path) -> Iterator[tuple[str, str, str]]:
    for header, relative in generated_headers(generated):
        installed = base.include / relative
        if installed.is_file():  # the wheel leaves out a few that only libtorch's build includes
            yield relative, installed.read_text("utf-8"), header.read_text("utf-8")


def compare_headers(base: Base, generated: Path) -> Comparison:
    """Compare regenerated headers with the base's; refuse the base on the first that differs."""
    wrapped: dict[Wrapper, list[str]] = {}
    for relative, installed, text in _shipped_pairs(base, generated):
        wrapper = detect_wrapper(installed, text)
        if wrapper is None:
            raise _edited(base, relative)
        wrapped.setdefault(wrapper, []).append(relative)
    ours = {path.name for path in (generated / "ATen" / "ops").glob("*.h")} | HAND_WRITTEN
    for header in sorted((base.include / "ATen" / "ops").glob("*.h")):
        if header.name not in ours:
            raise _refusal(base, f"torch/include/ATen/ops/{header.name}", "is not made by its YAML")
    if not wrapped:
        raise _refusal(base, "torch/include", "holds none of the generated headers")
    return Comparison(sum(map(len, wrapped.values())), _wrapper_of_most(base, wrapped))


def _wrapper_of_most(base: Base, wrapped: dict[Wrapper, list[str]]) -> Wrapper:
    """The release's wrapper; text around a few headers only is somebody's edit.

    Headers without any are fine: a release does not wrap all of them.
    """
    usual = max(wrapped, key=lambda wrapper: len(wrapped[wrapper]))
    for wrapper, headers in wrapped.items():
        if wrapper not in (usual, Wrapper()):
            raise _edited(base, headers[0])
    return usual


def _edited(base: Base, relative: str) -> BaseRefusedError:
    return _refusal(base, f"torch/include/{relative}", "differs from what its YAML makes")


def _refusal(base: Base, relative: str, what: str) -> BaseRefusedError:
    return BaseRefusedError(
        f"this torch {base.version} cannot be grafted onto: {relative} {what}",
        where=str(base.root / relative),
        why="what cannot be regenerated must not be patched: the base was edited, mixed from two "
        "builds, or made by another code generator",
        next="use an official wheel (scripts/build_torch.sh --torch VERSION), or build this tree "
        "from source (--from-source)",
        kind="headers differ",
    )
