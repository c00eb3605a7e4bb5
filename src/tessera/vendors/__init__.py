"""Vendors of accelerators: one file or folder per maker behind the interface in `base`.

Everything specific to a maker is here and nowhere else. Building blocks that several makers share are in `parts`.
"""
