"""NVIDIA GPUs, read and changed through NVIDIA's management library (NVML)."""
