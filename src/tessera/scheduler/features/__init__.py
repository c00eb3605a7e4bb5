"""Features of the scheduler: one folder each. None imports another."""
