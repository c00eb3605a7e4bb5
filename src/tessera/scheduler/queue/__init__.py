"""Pods that wait: refused ones until there is room, bound ones for their turn on a node."""
