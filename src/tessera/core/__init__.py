"""The decision core: what pods ask for, what cards have left, and which slices a pod gets.

Nothing in this package does I/O, reads a clock or knows a Kubernetes client, and it imports no other part of Tessera.
The extender, `explain`, `simulate`, the benchmarks and the property tests call the same functions.
"""
