"""Moves: places kept for pods that defragmentation evicts."""
