"""How a slice becomes real in a container: one file a sharing mode, and what they share."""
