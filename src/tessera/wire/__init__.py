"""Wire formats: everything that other programs wrote or will read is encoded and decoded here and nowhere else.

Decoders never trust their input: they return a typed value or raise `WireError` with a readable message.
"""
