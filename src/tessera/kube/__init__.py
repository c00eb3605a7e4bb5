"""Talking to the apiserver: access, client, reflector, events, leases. Stands alone: knows nothing of cards or pods."""
