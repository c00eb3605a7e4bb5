"""The device plugin API (v1beta1) on a unix socket, and kubelet's own sockets.

`plugin` keeps the service there and registered; `service` answers kubelet; who gets what is decided behind `Allocator`.
"""
