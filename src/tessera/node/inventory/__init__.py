"""Chooses the hardware that the agent works with; run as a program, it prints what the agent would find."""
