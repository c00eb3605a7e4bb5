"""Tells the cluster which cards this node has."""
