"""MIG in NVIDIA's section of the configuration: which profiles a model of card may be cut into.

Node agents read the allow list; the scheduler only validates it, because cards register the profiles that they offer.
The choice of an instance is in `core.mig`.
"""

from __future__ import annotations

from collections.abc import Iterable

from tessera.vendors.base import Section
from tessera.wire.quotes import quoted


class MigAllowance(Section, frozen=True, kw_only=True):
    models: tuple[str, ...] = ()
    """parts of product names"""
    profiles: tuple[str, ...] = ()


def validate(allowlist: Iterable[MigAllowance]) -> None:
    """Raise ValueError unless every entry has models and well-formed profiles, such as `2g.20gb`."""
    for entry in allowlist:
        if not entry.models or not entry.profiles:
            raise ValueError("invalid MIG profile allowlist: MIG profile allowlist must define models and profiles")
        for profile in entry.profiles:
            slices, dot, _ = profile.partition(".")
            if not dot or len(slices) < 2 or not slices.endswith("g"):
                raise ValueError(f"invalid MIG profile allowlist: invalid MIG profile {quoted(profile)}")


def _allow(models: str, profiles: str) -> MigAllowance:
    return MigAllowance(
        models=tuple(model.strip() for model in models.split(",")),
        profiles=tuple(profiles.split()),
    )


CHART_ALLOWLIST = (
    _allow("A30", "1g.6gb 2g.12gb 4g.24gb"),
    _allow("A100-SXM4-40GB, A100-40GB-PCIe, A100-PCIE-40GB", "1g.5gb 2g.10gb 3g.20gb 7g.40gb"),
    # The driver calls the whole A100 80GB 7g.79gb, unlike its siblings.
    _allow("A100-SXM4-80GB, A100-80GB-PCIe, A100-PCIE-80GB", "1g.10gb 2g.20gb 3g.40gb 7g.79gb"),
    _allow("H100-PCIE-80GB, H100-SXM5-80GB", "1g.10gb 2g.20gb 3g.40gb 7g.80gb"),
    _allow("H100-PCIE-94GB, H100-SXM5-94GB", "1g.12gb 2g.24gb 3g.47gb 7g.94gb"),
    _allow("H20, H100 on GH200", "1g.12gb 2g.24gb 3g.48gb 7g.96gb"),
    _allow("H200 NVL, H200-SXM5", "1g.18gb 2g.35gb 3g.71gb 7g.141gb"),
    _allow("B200", "1g.23gb 2g.45gb 3g.90gb 7g.180gb"),
    _allow("RTX PRO 6000 Blackwell Server Edition", "1g.24gb 2g.48gb 4g.96gb"),
)
