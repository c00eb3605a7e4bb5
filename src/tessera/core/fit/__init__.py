"""Whether a pod fits one node: the plain rule, the rules for one card, quotas, and the same checks on arrays."""
