"""A scripted kubelet on real sockets, and what a device plugin needs beside it."""
