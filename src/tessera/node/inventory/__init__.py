"""Cards, behind one small interface: NVML, a file that describes simulated ones, or none at all."""
