"""Use of cards by container on one node: shared regions are read, shown as metrics, and steered by priority."""
