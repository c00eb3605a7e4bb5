"""An embedded control plane: a Kubernetes API server inside the process, for the demo and for integration tests.

It answers as kube-apiserver does in daily use and is checked by the same contract suite; it is the stand-in, never the
proof. One event loop, no threads, nothing on disk.
"""

from __future__ import annotations
