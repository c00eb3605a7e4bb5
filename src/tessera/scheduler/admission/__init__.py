"""The webhook's decisions: what a pod becomes at creation, or why it is refused. No HTTP."""
