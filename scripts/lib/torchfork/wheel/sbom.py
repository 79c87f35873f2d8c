"""What a finished wheel is made of, as a CycloneDX 1.6 bill of materials."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from ..errors import BaseRefusedError
from ..upstream import archives
from ..upstream.pins import Releases, WheelPin
from ..upstream.wheel import is_grafted
from ..util import files

_FORMAT = "http://cyclonedx.org/schema/bom-1.6.schema.json"


def describe(wheel: Path, releases: Releases) -> dict[str, Any]:
    """The bill of materials: the wheel, the official release in it, and what it requires.

    The same wheel gives the same text, wherever `pin` put its line: the serial number is made from
    its hash, and the release's wheels come by name.
    """
    with archives.opened(wheel) as archive:
        metadata = archives.metadata_of(archive)
    name, version = metadata["name"], metadata["version"]
    if not is_grafted(version):
        raise BaseRefusedError(
            "this is not a wheel that torchfork made",
            where=str(wheel),
            why=f"its version is {version}",
            next="build one: scripts/build_torch.sh",
        )
    sha256 = files.sha256_file(wheel)
    release = releases.get(version)
    upstream = {
        "type": "library", "bom-ref": f"upstream-torch-{release.version}", "name": "torch",
        "version": release.version, "purl": f"pkg:pypi/torch@{release.version}",
        "pedigree": {"commits": [{"uid": release.commit}]},
        "externalReferences": [
            _wheel_reference(pin) for pin in sorted(release.wheels, key=lambda pin: pin.file)
        ],
    }  # fmt: skip
    required = [_required(text) for text in metadata.get("requires_dist", [])]
    root = f"pkg:pypi/{name}@{version}"
    return {
        "$schema": _FORMAT,
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.UUID(bytes=bytes.fromhex(sha256)[:16], version=4)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library", "bom-ref": root, "name": name, "version": version,
                "purl": root, "hashes": [{"alg": "SHA-256", "content": sha256}],
            },
            "tools": {"components": [{"type": "application", "name": "torchfork"}]},
        },
        "components": [upstream, *required],
        "dependencies": [
            {"ref": root, "dependsOn": [upstream["bom-ref"], *(c["bom-ref"] for c in required)]}
        ],
    }  # fmt: skip


def _wheel_reference(pin: WheelPin) -> dict[str, Any]:
    return {
        "type": "distribution",
        "url": pin.file,
        "hashes": [{"alg": "SHA-256", "content": pin.sha256}],
    }


def _required(text: str) -> dict[str, Any]:
    """A requirement as a component: its version is open, a range."""
    found = Requirement(text)
    component: dict[str, Any] = {
        "type": "library", "bom-ref": f"requires-{text}", "name": found.name,
        "purl": f"pkg:pypi/{found.name.lower()}",
        "properties": [{"name": "torchfork:requirement", "value": text}],
    }  # fmt: skip
    if found.extras or found.marker:
        component["scope"] = "optional"
    return component
