"""A scheduling loop that treats an extender as kube-scheduler does."""
