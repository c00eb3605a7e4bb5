"""The bill of materials of the image, as CycloneDX: every package of the distribution and every Python distribution."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from tools.image.debian import Package
from tools.image.wheels import Dist


def document(product: Dist, *, dists: Iterable[Dist], packages: Iterable[Package], distribution: str) -> dict[str, Any]:
    """The same parts give the same document."""
    components = [
        *(_debian(package, distribution) for package in packages),
        *(_python(dist) for dist in sorted(dists, key=lambda dist: dist.name.lower())),
    ]
    parts = ",".join([f"{product.name}@{product.version}", *(each["purl"] for each in components)])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, parts)}",
        "version": 1,
        "metadata": {"component": {**_python(product), "type": "application"}},
        "components": components,
    }


def _python(dist: Dist) -> dict[str, Any]:
    purl = f"pkg:pypi/{dist.name.lower().replace('_', '-')}@{quote(dist.version)}"
    licences = {"licenses": [{"expression": dist.licence}]} if dist.licence else {}
    return _component(dist.name, dist.version, purl) | licences


def _debian(package: Package, distribution: str) -> dict[str, Any]:
    version = quote(package.version, safe="+~")
    purl = f"pkg:deb/{distribution}/{quote(package.name)}@{version}?arch={package.architecture}"
    return _component(package.name, package.version, purl)


def _component(name: str, version: str, purl: str) -> dict[str, Any]:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
