"""Gangs: pods that are placed and bound as a whole, or not at all. The rest of the scheduler uses `coordinator`."""
