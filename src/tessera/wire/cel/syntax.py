"""The grammar: from the text of an expression to a tree.

Nesting, length and depth are bounded, so that neither the parser nor anything that walks the tree can run out of stack.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tessera.wire.errors import quoted

MAX_LENGTH = 10 * 1024
"""characters of an expression, as the API has it"""
MAX_NESTING = 24
"""brackets and operators before an operand inside one another, in the text"""
MAX_DEPTH = 64
"""of the tree: a chain of operators is as deep as it is long"""
MAX_PARTS = 1000
"""of the tree: some 20 ms to read; a list of 256 uuids has 257"""
TOKENS_OF_A_PART = 3
"""at most, on average: `cel.bind(x, 1, x)` has 10 for 4 parts"""
INT64_MAX = 2**63 - 1


class Unsupported(Exception):
    """An expression that is wrong, or outside the part of the language that is served."""


@dataclass(frozen=True, slots=True)
class Literal:
    value: str | int | bool


@dataclass(frozen=True, slots=True)
class Name:
    name: str


@dataclass(frozen=True, slots=True)
class Select:
    """`target.field`; with `is_test`, `has(target.field)`."""

    target: Node
    field: str
    is_test: bool = False


@dataclass(frozen=True, slots=True)
class Index:
    target: Node
    key: Node


@dataclass(frozen=True, slots=True)
class ListOf:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A function, an operator, or with a target a method."""

    name: str
    args: tuple[Node, ...]
    target: Node | None = None


@dataclass(frozen=True, slots=True)
class Bind:
    """`cel.bind(name, value, body)`."""

    name: str
    value: Node
    body: Node


@dataclass(frozen=True, slots=True)
class Quantified:
    """`target.exists(name, body)` and `target.all(name, body)`."""

    is_all: bool
    target: Node
    name: str
    body: Node


Node = Literal | Name | Select | Index | ListOf | Call | Bind | Quantified
Operand = Callable[[], Node]

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
    |(?P<number>0x[0-9a-fA-F]+|[0-9]+)(?![\w.])
    |(?P<string>[rR]?(?:'''|\"\"\"|'|"))
    |(?P<word>[A-Za-z_]\w*)
    |(?P<sign>\|\||&&|==|!=|<=|>=|[-+*/%!<>?:.,()\[\]])""",
    re.VERBOSE | re.ASCII,
)
_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "?": "?", '"': '"', "'": "'", "`": "`",
}  # fmt: skip
_CODE_LENGTHS = {"x": 2, "X": 2, "u": 4, "U": 8}
_RELATIONS = frozenset({"==", "!=", "<", "<=", ">", ">=", "in"})
_SUMS, _PRODUCTS = frozenset("+-"), frozenset("*/%")
_RESERVED = frozenset(
    {
        "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "namespace",
        "null", "package", "return", "var", "void", "while",
    }
)  # fmt: skip
_SINGLE, _ENDS = frozenset({"number", "string", "word"}), frozenset({",", ")", "]"})
QUANTIFIERS = frozenset({"exists", "all"})


class Token(NamedTuple):
    kind: str
    """`number`, `string`, `word`, `sign` or `end`"""
    value: str
    place: int


def children(node: Node) -> tuple[Node, ...]:
    """The parts that a tree is made of."""
    match node:
        case Literal() | Name():
            return ()
        case Select(target):
            return (target,)
        case Index(target, key):
            return (target, key)
        case ListOf(items):
            return items
        case Bind(_, value, body):
            return (value, body)
        case Quantified(_, target, _, body):
            return (target, body)
        case Call(_, args, target):
            return args if target is None else (*args, target)


def parse(text: str) -> tuple[Node, int]:
    """The tree of an expression, and how many parts it has. Raises Unsupported."""
    if len(text) > MAX_LENGTH:
        raise Unsupported(f"more than {MAX_LENGTH} characters")
    parser = _Parser(_tokens(text))
    return parser.read(), parser.parts


def _tokens(text: str) -> list[Token]:
    found: list[Token] = []
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise Unsupported(f"{quoted(text[place : place + 12])} at character {place + 1} cannot be read")
        kind, value, start = str(match.lastgroup), match.group(), place
        place = match.end()
        if kind == "string":
            value, place = _string(text, value, place)
        if kind != "space":
            found.append(Token(kind, value, start))
            if len(found) > TOKENS_OF_A_PART * MAX_PARTS:
                raise Unsupported(f"more than {MAX_PARTS} parts")
    return [*found, Token("end", "", len(text))]


def _string(text: str, opening: str, place: int) -> tuple[str, int]:
    """The content of a string literal from behind its opening quotes, and where it ends."""
    raw, quotes = opening[0] in "rR", opening.lstrip("rR")
    parts: list[str] = []
    while not text.startswith(quotes, place):
        letter = text[place : place + 1]
        if not letter or (len(quotes) == 1 and letter in "\r\n"):
            raise Unsupported("a string without an end")
        place += 1
        if letter == "\\" and not raw:
            letter, place = _escaped(text, place)
        parts.append(letter)
    return "".join(parts), place + len(quotes)


def _escaped(text: str, place: int) -> tuple[str, int]:
    letter = text[place : place + 1]
    if letter in _ESCAPES:
        return _ESCAPES[letter], place + 1
    size = _CODE_LENGTHS.get(letter, 0)
    digits = text[place + 1 : place + 1 + size]
    if size and len(digits) == size and re.fullmatch("[0-9a-fA-F]+", digits) and _is_letter(int(digits, 16)):
        return chr(int(digits, 16)), place + 1 + size
    raise Unsupported(f"the escape \\{letter} in a string")


def _is_letter(code: int) -> bool:
    return code < 0x110000 and not 0xD800 <= code < 0xE000


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._nesting = 0
        self._depths: dict[int, int] = {}
        """of the trees made so far, by identity; they are all kept in `_made`"""
        self._made: list[Node] = []

    def read(self) -> Node:
        found = self._expression()
        if self._tokens[self._next].kind != "end":
            raise self._unexpected()
        return found

    @property
    def parts(self) -> int:
        return len(self._made)

    # -- tokens

    def _take(self) -> Token:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def _at(self, *signs: str) -> bool:
        token = self._tokens[self._next]
        return token.kind in ("sign", "word") and token.value in signs

    def _accept(self, sign: str) -> bool:
        if self._at(sign):
            self._next += 1
            return True
        return False

    def _expect(self, sign: str) -> None:
        if not self._accept(sign):
            raise self._unexpected()

    def _word(self) -> str:
        token = self._take()
        if token.kind != "word" or token.value in _RESERVED or token.value in ("true", "false", "in"):
            self._next -= 1
            raise self._unexpected()
        return token.value

    def _unexpected(self) -> Unsupported:
        token = self._tokens[self._next]
        if token.kind == "end":
            return Unsupported("the expression ends too early")
        return Unsupported(f"{quoted(token.value)} at character {token.place + 1} is not expected or not supported")

    def _deeper(self) -> None:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise Unsupported(f"nested more than {MAX_NESTING} deep")

    # -- trees

    def _node(self, node: Node) -> Node:
        depth = 1 + max((self._depths[id(child)] for child in children(node)), default=0)
        if depth > MAX_DEPTH:
            raise Unsupported(f"more than {MAX_DEPTH} steps deep")
        self._depths[id(node)] = depth
        self._made.append(node)
        if len(self._made) > MAX_PARTS:
            raise Unsupported(f"more than {MAX_PARTS} parts")
        return node

    def _call(self, name: str, *args: Node, target: Node | None = None) -> Node:
        return self._node(Call(name, args, target))

    def _expression(self) -> Node:
        if self._is_alone():
            return self._primary()
        self._deeper()
        found = self._many("||", lambda: self._many("&&", self._relation))
        if self._accept("?"):
            yes = self._many("||", lambda: self._many("&&", self._relation))
            self._expect(":")
            found = self._call("?:", found, yes, self._expression())
        self._nesting -= 1
        return found

    def _is_alone(self) -> bool:
        """Whether a single word, number or string is next, as in a long list."""
        if self._tokens[self._next].kind not in _SINGLE:
            return False
        after = self._tokens[self._next + 1]
        return after.kind == "sign" and after.value in _ENDS

    def _many(self, sign: str, operand: Operand) -> Node:
        """Operands of one operator on one level: a chain of them is no deeper than two."""
        items = [operand()]
        while self._accept(sign):
            items.append(operand())
        return items[0] if len(items) == 1 else self._call(sign, *items)

    def _relation(self) -> Node:
        return self._chain(_RELATIONS, lambda: self._chain(_SUMS, lambda: self._chain(_PRODUCTS, self._unary)))

    def _chain(self, signs: frozenset[str], operand: Operand) -> Node:
        """Operands of operators that bind equally, from the left."""
        found = operand()
        while self._at(*signs):
            found = self._call(self._take().value, found, operand())
        return found

    def _unary(self) -> Node:
        for sign, name in (("!", "!"), ("-", "negate")):
            if self._accept(sign):
                self._deeper()
                found = self._unary()
                self._nesting -= 1
                return self._call(name, found)
        return self._member()

    def _member(self) -> Node:
        found = self._primary()
        while self._at(".", "["):
            if self._accept("["):
                key = self._expression()
                self._expect("]")
                found = self._node(Index(found, key))
                continue
            self._expect(".")
            field = self._word()
            found = self._method(found, field) if self._at("(") else self._node(Select(found, field))
        return found

    def _method(self, target: Node, name: str) -> Node:
        if target == Name("cel") and name == "bind":
            return self._bind()
        args = self._arguments()
        if name in QUANTIFIERS:
            if len(args) != 2 or not isinstance(args[0], Name):
                raise Unsupported(f"{name}() takes a name and an expression")
            return self._node(Quantified(name == "all", target, args[0].name, args[1]))
        return self._call(name, *args, target=target)

    def _bind(self) -> Node:
        args = self._arguments()
        if len(args) != 3 or not isinstance(args[0], Name):
            raise Unsupported("cel.bind() takes a name and two expressions")
        return self._node(Bind(args[0].name, args[1], args[2]))

    def _arguments(self) -> tuple[Node, ...]:
        self._expect("(")
        return self._items(")")

    def _items(self, end: str) -> tuple[Node, ...]:
        found: list[Node] = []
        while not self._accept(end):
            if found:
                self._expect(",")
                if end == "]" and self._accept(end):
                    break
            found.append(self._expression())
        return tuple(found)

    def _primary(self) -> Node:
        token = self._tokens[self._next]
        if token.kind in ("number", "string"):
            self._next += 1
            return self._node(Literal(token.value if token.kind == "string" else _number(token.value)))
        if self._accept("("):
            found = self._expression()
            self._expect(")")
            return found
        if self._accept("["):
            items = self._items("]")
            return self._node(ListOf(items))
        if self._at("true", "false"):
            return self._node(Literal(self._take().value == "true"))
        name = self._word()
        if not self._at("("):
            return self._node(Name(name))
        args = self._arguments()
        if name == "has":
            if len(args) != 1 or not isinstance(args[0], Select):
                raise Unsupported("has() takes a field, as in has(device.attributes['gpu.tessera.io'].model)")
            return self._node(Select(args[0].target, args[0].field, is_test=True))
        return self._call(name, *args)


def _number(text: str) -> int:
    value = int(text, 16) if text.startswith("0x") else int(text) if len(text) < 20 else INT64_MAX + 1
    if value > INT64_MAX:
        raise Unsupported(f"the number {quoted(text)} is too large")
    return value
