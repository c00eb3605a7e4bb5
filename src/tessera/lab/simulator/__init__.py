"""The core without a cluster: traces of pods placed on described nodes, under any policy.

Imports core, vendors and wire; talks to no cluster and reads no clock but its own simulated one.
"""
