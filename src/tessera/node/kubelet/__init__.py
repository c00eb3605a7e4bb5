"""The device plugin API (v1beta1) on a unix socket, and kubelet's own sockets."""
