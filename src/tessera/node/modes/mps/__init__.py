"""The sharing mode `mps`: NVIDIA's Multi-Process Service limits the processes of each container."""
