"""The agent on a GPU node: finds the cards, registers them, and turns a grant into what the container sees.

Blocking calls (NVML, files, other programs) run in threads of the packages that need them; everything else, and all
state, is on the event loop.
"""
