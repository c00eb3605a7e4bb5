"""What evaluation costs, in units of about a tenth of a microsecond, and the meter that ends it.

The price of an operation is what the worst arguments of their size take (`bench.selector_costs` looks for worse ones),
so that units bound time. What is charged depends on the expression and the device alone, never on a cache.
"""

from __future__ import annotations

from tessera.core.model.published_cards import CARD_COST

MAX_COST = CARD_COST
"""of all selectors of one request on one device: what people write takes 100 to 3000, which is a long pattern"""
MAX_FOLDED = 30_000
"""of the parts of an expression that are the same on all devices: they are evaluated once, when it is read"""

DEVICE, ATTRIBUTE = 100, 20
"""to look at a device, and for each attribute or capacity that is read of it; not part of what an expression spends"""
PART = 3
"""for each part of an expression that is evaluated: a literal, a name, an operator, a call"""
ITEM = 6
"""for each pair of items that is compared, and each item of a list that is built"""
BIND = 8
"""a variable that gets a value, by `cel.bind` or for an item of a loop"""
FAILURE = 40
"""for each failure that an expression gets over"""
READ_TEXT = 120
"""a text that is read as a quantity or as a version"""
VERSION_CHARACTER = 3
"""each character of a version: each second one may begin another part"""
NUMBERS = 60
"""two quantities that are compared, added or subtracted"""
PATTERN, PATTERN_CHARACTER, PATTERN_STATE = 200, 10, 2
"""a pattern that is used, and each character and each state of it: as if RE2 compiled it each time"""
UNICODE_CLASS = 5_000
"""a class of letters by a property, as `\\pL`: RE2 makes some 600 ranges of it"""
BAD_PATTERN = 4_000
"""a pattern that is refused: RE2 may have made all the states that fit into its memory"""
SEARCHED_STATES = 8
"""bytes of a text, times states of the pattern that is looked for in it, for one unit"""
COPIED_CHARACTERS, COPIED_ITEMS = 128, 8
"""of texts and lists that one unit copies or compares"""
CHANGED_CHARACTERS = 16
"""whose case one unit changes; of a text that is not ASCII, one"""
SEARCHED = 512
"""characters of a text, times those of a part that is looked for in it, for one unit"""


class TooCostly(Exception):
    """The work that an expression may do is done. Nothing in an expression gets over it."""


class Meter:
    """What an evaluation may still spend."""

    __slots__ = ("left", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self.left = most

    @property
    def spent(self) -> int:
        return self.most - self.left

    def spend(self, units: int) -> None:
        """Comes before the work, so that what is too much is not done."""
        self.left -= units
        if self.left < 0:
            raise TooCostly

    def spend_on_text(self, characters: int) -> None:
        """Copying, comparing or hashing them."""
        self.spend(1 + characters // COPIED_CHARACTERS)
