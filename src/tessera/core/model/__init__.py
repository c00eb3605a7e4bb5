"""The values of a decision: cards and nodes, what pods ask for and are granted, and why something does not fit."""
