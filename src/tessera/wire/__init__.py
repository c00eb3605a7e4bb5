"""Formats at the border: everything that other programs wrote or will read, encoded and decoded here and nowhere else.

Decoding never trusts its input: it answers with a typed value or raises `WireError` with a sentence for people.
"""
