"""What the long-running commands share: how they read flags, how they log, and how they listen.

Nothing here knows which service it is for, and nothing decides what a value means.
"""
