"""Benchmarks with budgets: each module is one, run as `python -m bench.<name>`."""
