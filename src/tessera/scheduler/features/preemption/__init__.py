"""Preemption: pods of lower priority make way."""
