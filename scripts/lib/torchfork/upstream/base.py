"""What a wheel base is: a directory with torch/ and torchgen/, and the interpreter it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import BaseRefusedError

# Of a text that is read into memory; the largest of real wheels is RECORD, of 4 MB.
TEXT_LIMIT = 64 << 20


def read_text(path: Path) -> str:
    """A text of a base's. Raises BaseRefusedError where the base has no such file."""
    try:
        if path.is_file() and path.stat().st_size <= TEXT_LIMIT:
            return path.read_text(encoding="utf-8")
        why = f"it is missing, not a file, or has more than {TEXT_LIMIT >> 20} MB"
    except (OSError, UnicodeDecodeError) as error:
        why = str(error)
    raise BaseRefusedError(
        "this torch lacks a file that the graft reads",
        where=str(path),
        why=why,
        next="use an official wheel: scripts/build_torch.sh --torch VERSION",
    )


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter that a wheel is built for, and what compiling for it needs."""

    executable: Path
    version: str  # '3.11.7'
    extension_suffix: str  # '.cpython-311-x86_64-linux-gnu.so'
    include: Path  # the directory of Python.h
    site_packages: Path  # its purelib

    @property
    def tag(self) -> str:
        """What wheels call it: 'cp311'; 'cp314t' where it is a free-threaded build."""
        major, minor = self.version.split(".")[:2]
        plain = f"cp{major}{minor}"
        free_threaded = f"{major}{minor}t-" in self.extension_suffix
        return f"{plain}t" if free_threaded else plain


@dataclass(frozen=True)
class Base:
    """An upstream torch, unpacked or installed, that additions are grafted onto.

    root is laid out as site-packages is: torch/, torchgen/, torch-<version>.dist-info/. Nothing of
    ours ever writes below root, except `--develop`, which keeps the originals.
    """

    root: Path
    version: str  # torch.__version__: '2.13.0+cpu'
    git_version: str  # the commit that torch/version.py names
    identity: str  # sha256 of the wheel, or a fingerprint of the installed RECORD
    interpreter: Interpreter
    cuda: str | None = None  # '13.0' for a CUDA build
    dist_info: str = ""  # name of the .dist-info directory
    wheel_tag: str = ""  # 'cp311-cp311-manylinux_2_28_x86_64'
    wheel: Path | None = None  # the wheel file that root was unpacked from
    texts: str = ""  # a hash over all but the libraries: see shared_identity
    headers: Path | None = None  # where compilers find torch/include, at a path of these texts

    @property
    def shared_identity(self) -> str:
        """What this base shares with the release's wheels for other Pythons.

        They differ in their libraries alone: generated code and kernels are the same for all.
        """
        return self.texts or self.identity

    @property
    def public_version(self) -> str:
        """The version without its local part: '2.13.0'."""
        return self.version.partition("+")[0]

    @property
    def metadata_version(self) -> str:
        """The version that pip knows, without a local part on the default index: '2.13.0'."""
        return self.dist_info.removesuffix(".dist-info").partition("-")[2]

    @property
    def torch(self) -> Path:
        """The torch package."""
        return self.root / "torch"

    @property
    def torch_cpu(self) -> Path:
        """The library that holds nearly everything."""
        return self.root / "torch" / "lib" / "libtorch_cpu.so"

    def library(self, name: str) -> Path:
        """A library of the base's by its plain name: 'torch_cpu'. macOS has suffixes of its own."""
        elf = self.torch / "lib" / f"lib{name}.so"
        return elf if elf.exists() else elf.with_suffix(".dylib")

    @property
    def include(self) -> Path:
        """The wheel's headers."""
        return self.headers or self.root / "torch" / "include"

    @property
    def packaged(self) -> Path:
        """The codegen's data in the wheel: YAML files, templates, the autograd generator."""
        return self.root / "torchgen" / "packaged"

    @property
    def extension(self) -> Path:
        """torch/_C.<abi>.so, relative to root."""
        return Path("torch") / f"_C{self.interpreter.extension_suffix}"


@dataclass(frozen=True)
class Upstream:
    """What an unmodified base has: functions, tags and dispatch keys, by its code generator.

    attributes: names that its Python modules have, by their place (python_names.attributes).
    """

    schemas: tuple[str, ...]
    tags: frozenset[str]
    dispatch_keys: frozenset[str]
    attributes: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def by_name(self) -> dict[str, str]:
        """Schemas by operator name with overload."""
        return {schema.partition("(")[0]: schema for schema in self.schemas}
