"""The machine that the node agent and the monitor run on: its GPUs, and directories shared with containers."""
