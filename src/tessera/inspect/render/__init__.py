"""Answers as people and programs read them: lines with styles, tables, JSON. Nothing is decided or asked here."""
