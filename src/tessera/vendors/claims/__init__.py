"""ResourceClaims of the driver `gpu.tessera.io` in the words of the core, and back."""
