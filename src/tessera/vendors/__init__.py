"""Vendors of accelerators: one file each behind the interface in `base`; all that is vendor-specific is here."""
