"""Moves: pods are evicted so that others fit, and their successors find the places that are held for them."""
