"""The webhook's verdict on a copy of a manifest that does not exist yet."""

from __future__ import annotations

import copy
from dataclasses import replace

from tessera.inspect.manifests import Manifest
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import Json
from tessera.scheduler.admission.claim_owners import NO_CLAIMS, ClaimOwner, Owner
from tessera.scheduler.admission.pod_admission import admit
from tessera.wire.admission import Verdict


def admit_copy(cluster: OfflineCluster, manifest: Manifest, number: int) -> tuple[Json | None, Verdict]:
    """The copy as the apiserver would store it; None if the webhook refuses it."""
    document = copy.deepcopy(manifest.pod)
    document["metadata"]["name"] = manifest.name if manifest.count == 1 and number == 1 else f"{manifest.name}-{number}"
    has_claims = cluster.settings.dra and bool(document["spec"].get("resourceClaims"))
    verdict = admit(
        document,
        namespace=manifest.namespace,
        vendors=cluster.vendors,
        # A claim that replaces the pod's requests is placed as they are.
        settings=replace(cluster.settings, dra_convert=False),
        ledger=cluster.ledger,
        # Whose they are is judged with the rest of the request: a claim of another driver is refused with a reason.
        claims=ClaimOwner(Owner.OURS) if has_claims else NO_CLAIMS,
    )
    if not verdict.allowed:
        return None, verdict
    document = verdict.changed or document
    document["metadata"]["uid"] = f"simulated-{manifest.namespace}-{manifest.name}-{number:06}"
    return document, verdict
