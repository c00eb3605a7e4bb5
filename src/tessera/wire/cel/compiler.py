"""From the tree of an expression to a function of a device.

    kinds that are known before evaluation        device -> attributes, capacity -> one domain's map -> value
                                                  (DEVICE)  (DOMAINS)               (DOMAIN)            (VALUE)

Maps are only looked up, never compared or counted as a whole: so it is known which attributes an expression reads, and
answers can be shared by cards that differ in others. `&&` and `||` get over a failure that does not decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tessera.wire.cel.functions import FUNCTIONS, METHODS, Pure
from tessera.wire.cel.patterns import BadPattern, compile_pattern
from tessera.wire.cel.syntax import (
    Bind,
    Call,
    Index,
    ListOf,
    Literal,
    Name,
    Node,
    Quantified,
    Select,
    Unsupported,
    count_nodes,
    parse,
)
from tessera.wire.cel.values import Failed, Value, contains

MAX_WORK = 500
"""of loops and patterns on one device, some milliseconds"""
NODES_OF_WORK, STATES_OF_WORK = 8, 100
"""parts of an expression that a loop evaluates, and states that a pattern looks at, for one unit of work"""

DEVICE, DOMAINS, DOMAIN, VALUE = "device", "domains", "domain", "value"


class Scope:
    """The variables of one evaluation, and what it may still cost."""

    __slots__ = ("device", "names", "work")

    def __init__(self, device: Mapping[str, Value]) -> None:
        self.device = device
        self.names: dict[str, Value | Failed] = {}
        self.work = MAX_WORK

    def spend(self, work: int) -> None:
        self.work -= work
        if self.work < 0:
            raise Failed("too much work")


Evaluate = Callable[[Scope], Value]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A part of an expression."""

    evaluate: Evaluate
    kind: str = VALUE


@dataclass(slots=True)
class Reads:
    """What an expression looks up of a device, as far as that is known from its text."""

    names: set[str] = field(default_factory=set)
    is_complete: bool = True
    """False if it computes a name"""


def compile_text(text: str) -> tuple[Evaluate, Reads]:
    """The function of an expression, and what it reads. Raises Unsupported."""
    reads = Reads()
    return _value(parse(text), {}, reads), reads


def _compile(node: Node, kinds: Mapping[str, str], reads: Reads) -> Compiled:
    match node:
        case Literal(literal):
            return Compiled(lambda scope: literal)
        case Name(name):
            return _name(name, kinds)
        case Select(target, name, is_test):
            return _select(_compile(target, kinds, reads), name, reads, is_test=is_test)
        case Index(target, key):
            return _index(_compile(target, kinds, reads), key, _value(key, kinds, reads), reads)
        case ListOf(items):
            parts = [_value(item, kinds, reads) for item in items]
            return Compiled(lambda scope: tuple([part(scope) for part in parts]))
        case Bind(name, value, body):
            return _bind(name, _compile(value, kinds, reads), body, kinds, reads)
        case Quantified(is_all, target, name, body):
            inner = _value(body, {**kinds, name: VALUE}, reads)
            cost = 1 + count_nodes(body) // NODES_OF_WORK
            return Compiled(_loop(_value(target, kinds, reads), name, inner, is_all=is_all, cost=cost))
        case Call(name, args, target):
            if name == "in":
                return _in(args[0], args[1], kinds, reads)
            _check_call(name, len(args), is_method=target is not None)
            values = [_value(arg, kinds, reads) for arg in args]
            if target is not None:
                return Compiled(_method(name, _value(target, kinds, reads), values, args))
            return Compiled(_function(name, values))


def _value(node: Node, kinds: Mapping[str, str], reads: Reads) -> Evaluate:
    compiled = _compile(node, kinds, reads)
    if compiled.kind != VALUE:
        raise Unsupported("device.attributes and device.capacity as a whole: name an attribute")
    return compiled.evaluate


def _name(name: str, kinds: Mapping[str, str]) -> Compiled:
    if name in kinds:

        def variable(scope: Scope) -> Value:
            found = scope.names[name]
            if isinstance(found, Failed):
                raise found
            return found

        return Compiled(variable, kinds[name])
    if name != "device":
        raise Unsupported(f"the name {name}")
    return Compiled(lambda scope: scope.device, DEVICE)


def _select(target: Compiled, name: str, reads: Reads, *, is_test: bool) -> Compiled:
    if target.kind == DEVICE:
        kinds = {"driver": VALUE, "allowMultipleAllocations": VALUE, "attributes": DOMAINS, "capacity": DOMAINS}
        if name not in kinds or is_test:
            raise Unsupported(f"has(device.{name})" if is_test else f"device.{name}")
        return Compiled(lambda scope: scope.device[name], kinds[name])
    if target.kind == VALUE or (is_test and target.kind == DOMAINS):
        raise Unsupported(f"the field {name} of a value")
    if target.kind == DOMAIN:
        reads.names.add(name)
    if is_test:
        return Compiled(lambda scope: contains(target.evaluate(scope), name))
    return Compiled(_lookup(target.evaluate, lambda scope: name), DOMAIN if target.kind == DOMAINS else VALUE)


def _index(target: Compiled, key: Node, evaluate_key: Evaluate, reads: Reads) -> Compiled:
    if target.kind == DEVICE:
        raise Unsupported("device[...]")
    if target.kind == DOMAIN:
        _note(key, reads)
    return Compiled(_lookup(target.evaluate, evaluate_key), DOMAIN if target.kind == DOMAINS else VALUE)


def _note(key: Node, reads: Reads) -> None:
    if isinstance(key, Literal):
        reads.names.add(str(key.value))
    else:
        reads.is_complete = False


def _lookup(target: Evaluate, key: Evaluate) -> Evaluate:
    def lookup(scope: Scope) -> Value:
        found, wanted = target(scope), key(scope)
        if isinstance(found, Mapping) and isinstance(wanted, str):
            try:
                return found[wanted]
            except KeyError:
                raise Failed(f"no such key: {wanted}") from None
        if isinstance(found, tuple) and type(wanted) is int and 0 <= wanted < len(found):
            return found[wanted]
        raise Failed("no such item")

    return lookup


def _in(item: Node, container: Node, kinds: Mapping[str, str], reads: Reads) -> Compiled:
    compiled, evaluate = _compile(container, kinds, reads), _value(item, kinds, reads)
    if compiled.kind == DEVICE:
        raise Unsupported("`in` device")
    if compiled.kind == DOMAIN:
        _note(item, reads)
    return Compiled(lambda scope: contains(compiled.evaluate(scope), evaluate(scope)))


def _bind(name: str, bound: Compiled, body: Node, kinds: Mapping[str, str], reads: Reads) -> Compiled:
    inner = _compile(body, {**kinds, name: bound.kind}, reads)

    def bind(scope: Scope) -> Value:
        try:
            value: Value | Failed = bound.evaluate(scope)
        except Failed as error:
            value = error  # It fails where it is used, if it is.
        return _with(scope, name, value, inner.evaluate)

    return Compiled(bind, inner.kind)


def _with(scope: Scope, name: str, value: Value | Failed, evaluate: Evaluate) -> Value:
    """A name has a value during an evaluation, whatever it means outside."""
    hidden = scope.names.get(name)
    scope.names[name] = value
    try:
        return evaluate(scope)
    finally:
        if hidden is None:
            del scope.names[name]
        else:
            scope.names[name] = hidden


def _loop(target: Evaluate, name: str, body: Evaluate, *, is_all: bool, cost: int) -> Evaluate:
    def loop(scope: Scope) -> bool:
        items, failure = target(scope), None
        if not isinstance(items, tuple):
            raise Failed("loops take a list")
        for item in items:
            scope.spend(cost)
            try:
                found = _with(scope, name, item, body)
            except Failed as error:
                failure = error
                continue
            if not isinstance(found, bool):
                failure = Failed("neither true nor false")
            elif found is not is_all:
                return found
        if failure is not None:
            raise failure
        return is_all

    return loop


def _logic(parts: list[Evaluate], *, decides: bool) -> Evaluate:
    """`||`, which `decides` by true, and `&&`, by false: a failure counts only if nothing decides."""

    def logic(scope: Scope) -> bool:
        failure = None
        for part in parts:
            try:
                found = part(scope)
            except Failed as error:
                failure = error
                continue
            if found is decides:
                return decides
            if not isinstance(found, bool):
                failure = Failed("neither true nor false")
        if failure is not None:
            raise failure
        return not decides

    return logic


def _choice(condition: Evaluate, yes: Evaluate, no: Evaluate) -> Evaluate:
    def choice(scope: Scope) -> Value:
        found = condition(scope)
        if not isinstance(found, bool):
            raise Failed("neither true nor false")
        return yes(scope) if found else no(scope)

    return choice


def _check_call(name: str, args: int, *, is_method: bool) -> None:
    known = METHODS if is_method else FUNCTIONS
    is_special = name in ("||", "&&", "?:") and not is_method
    if not is_special and (name not in known or known[name][0] != args):
        raise Unsupported(f"the {'method' if is_method else 'function'} {name}() with {args} arguments")


def _function(name: str, args: list[Evaluate]) -> Evaluate:
    if name in ("||", "&&"):
        return _logic(args, decides=name == "||")
    if name == "?:":
        return _choice(*args)
    return _applied(FUNCTIONS[name][1], args)


def _method(name: str, target: Evaluate, args: list[Evaluate], nodes: tuple[Node, ...]) -> Evaluate:
    if name == "matches":
        return _matches(target, args[0], nodes[0])
    return _applied(METHODS[name][1], [target, *args])


def _matches(target: Evaluate, wanted: Evaluate, node: Node) -> Evaluate:
    if isinstance(node, Literal) and isinstance(node.value, str):
        try:
            compile_pattern(node.value)
        except BadPattern as error:
            raise Unsupported(f"the pattern of matches(): {error}") from error

    def matches(scope: Scope) -> bool:
        text, pattern = target(scope), wanted(scope)
        if not isinstance(text, str) or not isinstance(pattern, str):
            raise Failed("matches() takes texts")
        try:
            compiled = compile_pattern(pattern)
        except BadPattern as error:
            raise Failed(str(error)) from error
        scope.spend(1 + compiled.work(text) // STATES_OF_WORK)
        return compiled.is_in(text)

    return matches


def _applied(apply: Pure, parts: list[Evaluate]) -> Evaluate:
    if len(parts) == 1:
        [only] = parts
        return lambda scope: apply(only(scope))
    if len(parts) == 2:
        first, second = parts
        return lambda scope: apply(first(scope), second(scope))
    return lambda scope: apply(*[part(scope) for part in parts])
