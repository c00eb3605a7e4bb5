"""From a pod that was bound to this node to containers that have their slices, and to the end of that."""
