"""The node's half of dynamic resource allocation: cards as ResourceSlices, and ResourceClaims prepared for kubelet."""
