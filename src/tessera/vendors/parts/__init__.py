"""Building blocks of vendors: how cards register, what containers request, how cards are chosen.

Nothing here is specific to one maker, and nothing outside `tessera.vendors` uses it.
"""
