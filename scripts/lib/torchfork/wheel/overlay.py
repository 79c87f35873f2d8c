"""Pack a wheel of the difference alone, which is activated when the official torch is imported."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import Version

from ..additions.load import OVERLAY
from ..errors import UsageError
from ..upstream import binaries
from ..upstream.base import Base
from ..util import files
from .pack import new, tag_lines, write

if TYPE_CHECKING:
    from .overlay_runtime.activate import MadeFor

RUNTIME = Path(__file__).with_name("overlay_runtime")
DATA = "overlay.json"
# torch's files are served one by one; the code generator whole, for it reads what lies beside it.
_SERVED = "torch/"
_WHOLE = "torchgen/"


@dataclass(frozen=True)
class Name:
    """What an overlay is called: a distribution of its own beside torch."""

    distribution: str  # 'torch-ext'
    version: str  # the additions' own: '1.0'

    @property
    def package(self) -> str:
        """The import name: 'torch_ext'."""
        return canonicalize_name(self.distribution).replace("-", "_")

    def full_version(self, base: Base) -> str:
        """The version with the torch it is for: '1.0+torch2.13.0.cpu'."""
        local = re.sub(r"[^A-Za-z0-9]+", ".", base.version)
        return f"{self.version}+torch{local}"


def named(root: Path, given: str | None) -> Name:
    """What the overlay of additions is called: `given`, or what overlay.toml says.

    root: the additions directory. Raises UsageError where neither says, or nothing valid.
    """
    place = root / OVERLAY
    try:
        text = place.read_text(encoding="utf-8") if place.is_file() else ""
        settings = files.parse_toml(text)
        distribution = given or str(settings.get("name", ""))
        version = str(settings.get("version", "1.0"))
        canonicalize_name(distribution, validate=True)
        Version(version)
    except ValueError as error:  # all of them: of the text, of TOML, of a name, of a version
        raise UsageError(
            "the overlay needs a name and a version of its own",
            where=str(place),
            why=str(error),
            next=f'say --name NAME, or write name = "…" and version = "1.0" into {OVERLAY}',
        ) from error
    return Name(distribution, version)


def require_linux(base: Base) -> None:
    """Raise UsageError where the base is not one for Linux."""
    if not base.torch_cpu.exists():
        raise UsageError(
            "an overlay is made for Linux",
            where=base.wheel_tag,
            why="it relies on how the loader of Linux finds libraries by their SONAME",
            next="build the full wheel: leave out --overlay",
        )


def pack(base: Base, tree: Path, name: Name, out: Path, epoch: int) -> Path:
    """Write the overlay's wheel into `out` and return its path.

    tree: laid out as site-packages is, of files that are replaced or added.
    epoch: seconds since 1970 that all members carry as their time.
    """
    version = name.full_version(base)
    members = {**dict(_members(base, tree, name, version)), **_dist_info(base, name, version)}
    plan = {
        member: new(data, 0o755 if member.endswith(".so") else 0o644)
        for member, data in members.items()
    }
    target = out / f"{name.package}-{version}-{base.wheel_tag}.whl"
    write(target, plan, epoch)
    return target


def _members(base: Base, tree: Path, name: Name, version: str) -> Iterator[tuple[str, bytes]]:
    """Everything but the dist-info, by its path in the wheel."""
    everything = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for root, below in ((base.root, _WHOLE), (tree, ""))
        for path in files.tree_files(root / below)
    }
    texts = {path: text for path, text in everything.items() if path.startswith(_SERVED)}
    for path, text in everything.items():
        if path.startswith(_WHOLE) and not path.endswith(".pyc"):
            yield f"{name.package}/{path}", text
    for source in sorted(RUNTIME.glob("*.py")):
        yield f"{name.package}/{source.name}", source.read_bytes()
    yield f"{name.package}.pth", f"import {name.package}\n".encode()
    data = json.dumps(_data(base, texts, name, version), indent=1, sort_keys=True) + "\n"
    yield f"{name.package}/{DATA}", data.encode()
    config = RUNTIME / "TorchConfig.cmake"
    yield f"{name.package}/torch/share/cmake/Torch/{config.name}", config.read_bytes()
    for path, text in texts.items():
        if not path.endswith(".pyi"):
            yield f"{name.package}/{path}", text
    yield from _stubs(base, texts)


def _stubs(base: Base, texts: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """A partial stub package for type checkers: torch's modules serve what it does not have.

    It has all of torch's stubs, for pyright sees none in torch where there is such a package.
    A changed public module of Python stands in it as it is: type checkers read its annotations.
    """
    for stub in sorted(base.torch.rglob("*.pyi")):
        path = stub.relative_to(base.root).as_posix()
        if path not in texts:
            yield f"torch-stubs/{path.removeprefix(_SERVED)}", stub.read_bytes()
    yield "torch-stubs/py.typed", b"partial\n"
    for path, text in texts.items():
        stem, _, suffix = path.removeprefix(_SERVED).rpartition(".")
        private = any(part.startswith("_") and part != "__init__" for part in stem.split("/"))
        public_module = suffix == "py" and not private and f"torch/{stem}.pyi" not in texts
        if suffix == "pyi" or public_module:
            yield f"torch-stubs/{stem}.pyi", text


def _data(base: Base, texts: Mapping[str, bytes], name: Name, version: str) -> MadeFor:
    """overlay.json: what the overlay was made for, and what it has."""
    covers = {
        path: zlib.crc32((base.root / path).read_bytes())
        for path in sorted(texts)
        if path.endswith((".py", ".so")) and (base.root / path).is_file()
    }
    modules = {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
        for path in sorted(texts)
        if path.endswith(".py")
    }
    modules |= {"torch._C": base.extension.as_posix(), "torchgen": f"{_WHOLE}__init__.py"}
    return {
        "name": name.distribution,
        "version": version,
        "torch": base.version,
        "commit": base.git_version,
        "covers": covers,
        "modules": modules,
        "preload": list(_preload(base)),
        # --force-reinstall: 2.13.0+cpu satisfies the requirement 2.13.0, so nothing would be done
        "cure": f"python -m pip install --force-reinstall 'torch=={base.metadata_version}' (from "
        f"an index that has {base.version}), or install the {name.distribution} for that torch",
    }


def _preload(base: Base) -> Iterator[str]:
    """The base's libraries that the overlay's libtorch.so needs, each after those it needs."""
    needed = binaries.read_elf(base.torch / "lib" / "libtorch.so").needed
    yield from (name for name in needed if (base.torch / "lib" / name).is_file())


def _dist_info(base: Base, name: Name, version: str) -> dict[str, bytes]:
    metadata = (
        "Metadata-Version: 2.1\n"
        f"Name: {name.distribution}\n"
        f"Version: {version}\n"
        f"Summary: Native operators for torch {base.version}, activated when it is imported\n"
        f"Requires-Dist: torch=={base.public_version}\n"
    )
    wheel = "Wheel-Version: 1.0\nGenerator: torchfork\nRoot-Is-Purelib: false\n"
    wheel += tag_lines(base.wheel_tag)
    folder = f"{name.package}-{version}.dist-info"
    return {f"{folder}/METADATA": metadata.encode(), f"{folder}/WHEEL": wheel.encode()}
