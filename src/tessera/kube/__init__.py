"""The apiserver client: access, verbs, reflector, events, leases. It knows nothing of cards or pods."""
