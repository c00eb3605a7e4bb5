"""The sharing modes: how a container gets its slice. One module or package per mode, and what they share."""
