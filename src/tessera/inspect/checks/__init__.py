"""Checks of an installation: each looks at one thing and answers with findings. Nothing is ever repaired here."""
