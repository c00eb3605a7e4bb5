"""Formats answers for people and programs: styled lines, tables, JSON. Nothing is decided here."""
