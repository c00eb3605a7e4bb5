"""Metrics: the service's own, and HAMi's per-card series."""
