"""The device plugin API (v1beta1) on a unix socket, and kubelet's own sockets.

`plugin` keeps the service running and registered; `service` answers kubelet; an `Allocator` decides.
"""
