"""Simulated GPU nodes: their registration, their agents, and what their containers see."""
