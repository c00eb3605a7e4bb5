"""A Kubernetes API server in one process: enough of it for the product and for kubectl."""
