"""An embedded control plane for the demo and the integration tests: API server, scheduling loop and kubelets.

The API server answers as kube-apiserver does in daily use, and the same contract suite runs against both. Everything
runs in one event loop, without threads and without files.
"""

from __future__ import annotations
