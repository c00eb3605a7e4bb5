"""The serving certificate: from files or from our own authority, renewed and served without a restart."""
