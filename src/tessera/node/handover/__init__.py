"""Hands the slices of a bound pod to its containers, from kubelet's Allocate to the end of the handover."""
