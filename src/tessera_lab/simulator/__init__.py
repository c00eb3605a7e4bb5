"""Places the pods of a trace on described nodes under any policy, with the scheduler's own core.

It talks to no cluster, and its only clock is a simulated one.
"""
