"""HTTP/1.1 over httptools, for the two paths that every pod takes: the extender's listener and the apiserver client.

It imports nothing of Tessera. It has no middleware, compression, redirects, upgrades or HTTP/2: aiohttp serves
everything that is not on those two paths. ADR 6 and ADR 7 give the measurements.
"""
