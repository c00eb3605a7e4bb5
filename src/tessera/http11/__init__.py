"""HTTP/1.1 over httptools, for every listener and for the apiserver client.

It imports nothing of Tessera. It has no middleware, compression, redirects, upgrades or HTTP/2. ADR 6 and ADR 7 give
the measurements.
"""
