"""What features share that evict pods: who may leave, the search for all that wait, and the calls."""
