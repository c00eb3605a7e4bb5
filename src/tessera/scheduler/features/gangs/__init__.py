"""Gangs: pods that are placed and bound as a whole, or not at all. `feature` is what the pipeline knows of them."""
