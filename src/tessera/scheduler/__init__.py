"""The scheduler service: webhook, extender, registration of nodes, binding, certificates, metrics.

Decisions about placement are in `core`; here they meet the apiserver. One event loop is the only writer of the ledger.
"""
