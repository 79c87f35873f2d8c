"""Tiny torch wheels: everything that the tooling reads of a real one, in a few kilobytes.

Their torch imports without any C++: torch/_C.py answers what the verification asks, from
torch/operators.json.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import platform
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from torchfork.upstream.base import Interpreter
from torchfork.upstream.pins import Release, Releases, WheelPin

COMMIT = "c0ffee" * 6 + "abcd"
OTHER_COMMIT = "badc0de0" * 5
PYTHON_TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"
PLATFORM = f"linux_{platform.machine()}"
TAG = f"{PYTHON_TAG}-{PYTHON_TAG}-{PLATFORM}"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
RELU = "aten::relu(Tensor self) -> Tensor"

_C_MODULE = """
import json, pathlib
_KNOWN = json.loads(pathlib.Path(__file__).with_name("operators.json").read_text())
class _Schema:
    def __init__(self, text):
        self.text, whole = text, text.partition("(")[0]
        self.name, _, self.overload_name = whole.partition(".")
    def __str__(self):
        return self.text
def _jit_get_all_schemas():
    return [_Schema(text) for text in _KNOWN["schemas"]]
def parse_schema(text):
    return _Schema(text)
def _dispatch_has_kernel(name):
    return any(text.partition("(")[0] == name for text in _KNOWN["schemas"])
def _dispatch_has_kernel_for_dispatch_key(name, key):
    return key in _KNOWN["kernels"].get(name, ())
class _VariableFunctions:
    pass
class _nn:
    pass
"""

_INIT = """
import json, pathlib
from . import _C
from .version import __version__
class Tensor:
    pass
for _name in _C._KNOWN["functions"]:
    setattr(_C._VariableFunctions, _name, print)
    globals()[_name] = print
for _name in _C._KNOWN["methods"]:
    setattr(Tensor, _name, print)
"""


def version_file(version: str, commit: str = COMMIT, cuda: str | None = None) -> str:
    """torch/version.py as upstream's build writes it."""
    return (
        "from typing import Optional\n\n"
        "__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']\n"
        f"__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {cuda!r}\n"
        f"git_version = '{commit}'\nhip: Optional[str] = None\n"
    )


def operators_file(
    schemas: list[str],
    functions: tuple[str, ...] = (),
    methods: tuple[str, ...] = (),
    kernels: Mapping[str, list[str]] | None = None,
) -> str:
    """What the sample torch registers and binds."""
    return json.dumps(
        {"schemas": schemas, "functions": functions, "methods": methods, "kernels": kernels or {}}
    )


def contents(
    version: str = "9.1.0+cpu", metadata_version: str | None = None, commit: str = COMMIT
) -> dict[str, bytes]:
    """The wheel's files but RECORD."""
    info = f"torch-{metadata_version or version}.dist-info"
    metadata = (
        f"Metadata-Version: 2.1\nName: torch\nVersion: {metadata_version or version}\n"
        "Summary: a sample\n\nVersion: not this line\n"
    )
    wheel = f"Wheel-Version: 1.0\nGenerator: sample\nRoot-Is-Purelib: false\nTag: {TAG}\n"
    texts = {
        "torch/__init__.py": _INIT,
        "torch/_C.py": _C_MODULE,
        "torch/operators.json": operators_file([RELU]),
        "torch/version.py": version_file(version, commit),
        "torch/overrides.py": "NAMES = ['relu']\n",
        "torch/include/ATen/ops/relu.h": "#pragma once\n",
        "torch/lib/libtorch.so": "a stub library\n",
        f"torch/_C{SUFFIX}.stub": "another\n",
        "torchgen/packaged/ATen/native/native_functions.yaml": "- func: relu(Tensor self)\n",
        "torchgen/gen.py": "",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": wheel,
        f"{info}/licenses/LICENSE": "free\n",
    }
    return {name: text.encode() for name, text in texts.items()}


def with_record(files: Mapping[str, bytes]) -> dict[str, bytes]:
    info = next(name.split("/")[0] for name in files if name.endswith(".dist-info/METADATA"))
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.writerow((name, f"sha256={digest}", len(data)))
    rows.writerow((f"{info}/RECORD", "", ""))
    return {**files, f"{info}/RECORD": text.getvalue().encode()}


def write_wheel(
    directory: Path,
    files: Mapping[str, bytes] | None = None,
    *,
    version: str = "9.1.0+cpu",
    tag: str = TAG,
    build: str = "",
) -> Path:
    """A wheel file in `directory`; its files are `contents()` unless given."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"torch-{version}{'-' + build if build else ''}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (with_record(contents(version)) if files is None else files).items():
            info = zipfile.ZipInfo(name, (2021, 2, 3, 4, 5, 6))
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o100775 if name.endswith(".so") else 0o100664) << 16
            archive.writestr(info, data)
    return path


def made_up(
    directory: Path, name: str, version: str, *lines: str, files: dict[str, str] | None = None
) -> Path:
    """A wheel of a package that exists nowhere else. lines: of its metadata."""
    stem = f"{name.replace('-', '_')}-{version}"
    path = directory / f"{stem}-py3-none-any.whl"
    metadata = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines])
    info = {
        "METADATA": metadata + "\n", "RECORD": "",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }  # fmt: skip
    members = {f"{stem}.dist-info/{key}": text for key, text in info.items()} | (files or {})
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in members.items():
            archive.writestr(member, text)
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def releases(path: Path, *wheels: Path, commit: str = COMMIT) -> Releases:
    """Pins of release 9.1.0 that know these wheels."""
    pins = tuple(WheelPin(wheel.name, sha256(wheel)) for wheel in wheels)
    rows = "".join(f'  {{ file = "{p.file}", sha256 = "{p.sha256}" }},\n' for p in pins)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'# kept\ndefault = "9.1.0"\n\n[[release]]\nversion = "9.1.0"\ncommit = "{commit}"\n'
        f"wheels = [\n{rows}]\n"
    )
    return Releases(path, "9.1.0", (Release("9.1.0", commit, pins),))


def install(site: Path, files: Mapping[str, bytes] | None = None) -> None:
    """What an installer leaves of a wheel in site-packages."""
    wheel_files = with_record(contents()) if files is None else dict(files)
    info = next(name.split("/")[0] for name in wheel_files if name.endswith("/RECORD"))
    extra = f"{info}/INSTALLER,,\n../../../bin/torchrun,,\ntorch/__pycache__/overrides.x.pyc,,\n"
    wheel_files[f"{info}/RECORD"] += extra.encode()
    wheel_files[f"{info}/INSTALLER"] = b"sample\n"
    for name, data in wheel_files.items():
        place = site / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


def make_editable(site: Path, checkout: Path) -> None:
    """As `pip install --editable` has torch: a finder of a checkout, and no directory."""
    checkout.mkdir()
    (site / "torch").rename(checkout / "torch")
    finder = f"""
import importlib.util, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch":
            place = {str(checkout / "torch")!r}
            return importlib.util.spec_from_file_location(
                name, place + "/__init__.py", submodule_search_locations=[place])
sys.meta_path.append(Finder)
"""
    (site / "__editable___torch_finder.py").write_text(finder)
    (site / "__editable__.torch.pth").write_text("import __editable___torch_finder\n")


def environment(root: Path) -> Interpreter:
    from torchfork.upstream.base import probe

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root)], check=True)
    return probe(root / "bin" / "python", headers=False)


@cache
def this_python() -> Interpreter:
    """The interpreter that runs the tests, as one that wheels are for."""
    from torchfork.upstream.base import probe

    return probe(sys.executable, headers=False)
