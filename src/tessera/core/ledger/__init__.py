"""The account of every card: who holds what, what is tried and taken back, and the audit of it."""
