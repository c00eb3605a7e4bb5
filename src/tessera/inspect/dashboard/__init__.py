"""The page: every card of a cluster, the pods that wait, what would fit, and the past, served over HTTP.

`server` has the routes, `state` what viewers are sent, and `documents` its form. The static files are in `static`. What
the page shows comes from a `PageSource`: a cluster that a user's kubeconfig reaches, a snapshot, a journal, or the
engine of a running scheduler. Nothing here changes a cluster.
"""
