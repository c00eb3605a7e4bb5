"""The serving certificate: from files, or of our own authority, renewed and shown without a restart."""
