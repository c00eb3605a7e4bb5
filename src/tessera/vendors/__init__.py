"""Vendors of accelerators: one file or folder a maker behind the interface in `base`, and nothing of a maker elsewhere.

What several makers are built from is in `parts`.
"""
