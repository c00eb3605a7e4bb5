"""Controllers of the embedded control plane: workloads, and the garbage collection of what they own.

Each workload has a module with one pure function: from the workload and what it owns to a `Plan`. `loop` carries plans
out.
"""
