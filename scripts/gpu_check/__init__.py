"""The agent's own code on a real card. Run by `scripts/gpu-check`; the results are in docs/hardware.md."""
