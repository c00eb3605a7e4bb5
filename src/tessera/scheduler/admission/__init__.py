"""The webhook's decisions: how a pod is changed at creation, or why it is refused. No HTTP."""
