"""Checks of an installation. Each looks at one thing and returns findings; none repairs anything."""
