"""What several vendors are built from: how cards register, what containers ask for, how cards are chosen.

Nothing here belongs to one maker, and nothing outside `tessera.vendors` needs it.
"""
