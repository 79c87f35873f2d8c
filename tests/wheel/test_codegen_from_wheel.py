"""The code generator inside the wheel knows the added operators and makes the wheel's headers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from subject import Subject

from torchfork.codegen import client, header_check
from torchfork.codegen.model import Manifest
from torchfork.pipelines.graft import KEPT_HEADERS
from torchfork.upstream.base import Base, Upstream
from torchfork.util import cache
from torchfork.util.ui import Ui


@dataclass(frozen=True)
class Regenerated:
    """What the installed wheel's torchgen made of the installed wheel's YAML."""

    upstream: Upstream
    headers: Path


@pytest.fixture(scope="module")
def regenerated(subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Regenerated:
    """Run the generator, once for this module."""
    scratch = tmp_path_factory.mktemp("codegen")
    (scratch / "home").mkdir()
    (scratch / "home" / "torchgen").symlink_to(subject.site / "torchgen")
    upstream = client.regenerate_base(scratch / "home", scratch / "out", scratch)
    return Regenerated(upstream, scratch / "out")


def test_the_packaged_yaml_holds_exactly_the_additions_more(
    regenerated: Regenerated, added: Manifest, base: Base
) -> None:
    theirs = header_check.check_headers(base, cache.directory(), Ui(quiet=True)).upstream
    assert set(regenerated.upstream.schemas) - set(theirs.schemas) == {
        o.schema for o in added.operators
    }
    assert not set(theirs.schemas) - set(regenerated.upstream.schemas)


def test_the_wheel_regenerates_its_own_headers(
    regenerated: Regenerated, subject: Subject, base: Base
) -> None:
    """The header check that a base has to pass, on the grafted wheel itself."""
    grafted = replace(base, root=subject.site, headers=None, version=subject.wheel.version)
    # Compiled into libtorch with their values, so that a wheel keeps the base's.
    for _, relative in list(header_check.generated_headers(regenerated.headers)):
        if relative in KEPT_HEADERS:
            ours = subject.site / "torch" / "include" / relative
            assert ours.read_bytes() == (base.include / relative).read_bytes()
    for header, relative in list(header_check.generated_headers(regenerated.headers)):
        if relative in KEPT_HEADERS:
            header.unlink()
    assert header_check.compare_headers(grafted, regenerated.headers).compared > 5_000


def test_a_stranger_runs_the_wheels_own_torchgen(subject: Subject) -> None:
    """As PyTorch's out-of-tree backends do, with the wheel's interpreter and packaged data."""
    program = (
        "import json, torchgen, pathlib, torchgen.gen as gen\n"
        "at = pathlib.Path(torchgen.__file__).parent / 'packaged' / 'ATen' / 'native'\n"
        "parsed = gen.parse_native_yaml(str(at / 'native_functions.yaml'), str(at / 'tags.yaml'))\n"
        "found = {str(f.func.name): f for f in parsed.native_functions}\n"
        "gdh = found['gdh']\n"
        "print(json.dumps([str(gdh.func), gdh.has_composite_implicit_autograd_kernel,\n"
        "                  sorted(v.name for v in gdh.variants)]))"
    )
    # torchgen needs pyyaml, which torch does not require: the tests' own is lent to it, after the
    # environment's own packages.
    lend = f"import sys; sys.path.append({str(Path(yaml.__file__).parents[1])!r})\n"
    told = subject.ask(lend + program)
    assert told == ["gdh(Tensor(a) self) -> Tensor(a)", True, ["function", "method"]]
