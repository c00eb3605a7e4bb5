"""The pure heart of Tessera: what a pod asks for, what cards have, and who gets which slice.

Nothing in this package does I/O, reads a clock or knows Kubernetes' client libraries; it imports no other
part of Tessera. The extender, `explain`, `simulate`, the benchmarks and the property tests call the same functions.
"""
