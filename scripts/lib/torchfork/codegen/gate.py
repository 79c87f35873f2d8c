"""The gate: a base whose own YAML does not regenerate its own headers must not be grafted onto."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import BaseRefusedError
from ..upstream.base import Base

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
class GateReport:
    """How many headers were compared, and the wrapper that the release puts around them."""

    compared: int
    wrapper: Wrapper


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

    A macOS wheel has been generated with --mps, which shows in RegistrationDeclarations.h.
    """
    header = base.include / "ATen" / "MPSFunctions.h"
    return ["mps"] if header.is_file() else []


def _shipped_pairs(base: Base, generated: Path) -> Iterator[tuple[str, str, str]]:
    for header, relative in generated_headers(generated):
        installed = base.include / relative
        if installed.is_file():  # the wheel leaves out a few that only libtorch's build includes
            yield relative, installed.read_text("utf-8"), header.read_text("utf-8")


def check(base: Base, generated: Path) -> GateReport:
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
    return GateReport(sum(map(len, wrapped.values())), _wrapper_of_most(base, wrapped))


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
