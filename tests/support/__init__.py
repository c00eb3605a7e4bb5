"""Builders, fakes and helpers that several test packages share."""
