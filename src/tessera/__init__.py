"""Tessera shares GPUs and other accelerators between Kubernetes pods."""

__version__ = "0.2.0"
