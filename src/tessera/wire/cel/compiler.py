"""From the tree of an expression to a function of a device.

    kinds that are known before evaluation        device -> attributes, capacity -> one domain's map -> value
                                                  (DEVICE)  (DOMAINS)               (DOMAIN)            (VALUE)

Maps are only looked up, never compared or counted as a whole: so it is known which attributes an expression reads, and
answers can be shared by cards that differ in others. `&&` and `||` get over a failure that does not decide. What all
devices have in common is computed once. Every evaluation pays a meter for what it does (`costs`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tessera.wire.cel.functions import FUNCTIONS, METHODS, BadPattern, Pure, check_pattern, matches
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
    parse,
)
from tessera.wire.cel.values import BIND, FAILURE, ITEM, MAX_FOLDED, PART, Failed, Meter, TooCostly, Value, contains

DEVICE, DOMAINS, DOMAIN, VALUE = "device", "domains", "domain", "value"
NO_NAMES = frozenset[str]()
TOO_COSTLY = "it takes too much work, whatever the device is"


class Domains(dict[str, Value]):
    """By domain; one that a device does not have is empty."""

    def __missing__(self, key: str) -> Value:
        return {}


class Scope:
    """The variables of one evaluation, and what it may still cost."""

    __slots__ = ("device", "meter", "names")

    def __init__(self, device: Mapping[str, Value], meter: Meter) -> None:
        self.device = device
        self.names: dict[str, Value | Failed] = {}
        self.meter = meter


Evaluate = Callable[[Scope], Value]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A part of an expression."""

    evaluate: Evaluate
    """without what `cost` says: whatever evaluates it has paid that"""
    cost: int = PART
    """of the part and all that is evaluated with it in any case. What may be left out, or comes again and again, is
    paid where that is decided"""
    kind: str = VALUE
    names: frozenset[str] = NO_NAMES
    """the variables that its value depends on, and `device`"""
    constant: Value | None = None
    """its value, if that is known before evaluation"""

    def paid(self) -> Evaluate:
        """The same, with the cost of it."""
        evaluate, cost = self.evaluate, self.cost

        def pay_and_evaluate(scope: Scope) -> Value:
            scope.meter.spend(cost)
            return evaluate(scope)

        return pay_and_evaluate


@dataclass(slots=True)
class Reads:
    """What an expression looks up of a device, as far as that is known from its text."""

    names: set[str] = field(default_factory=set)
    is_complete: bool = True
    """False if it computes a name"""
    domains: bool = False
    """whether it asks which domains there are"""


class Expression(NamedTuple):
    evaluate: Evaluate
    reads: Reads
    parts: int


def compile_text(text: str) -> Expression:
    """Raises Unsupported, also if what does not depend on a device takes too much work."""
    tree, parts = parse(text)
    compiler = _Compiler()
    try:
        return Expression(compiler.value(tree, {}).paid(), compiler.reads, parts)
    except TooCostly:
        raise Unsupported(TOO_COSTLY) from None


class _Compiler:
    """Compiles one expression and notes what it reads."""

    def __init__(self) -> None:
        self._meter = Meter(MAX_FOLDED)
        self.reads = Reads()

    def value(self, node: Node, kinds: Mapping[str, str]) -> Compiled:
        compiled = self._compile(node, kinds)
        if compiled.kind != VALUE:
            raise Unsupported("device.attributes and device.capacity as a whole: name an attribute")
        return compiled

    def _compile(self, node: Node, kinds: Mapping[str, str]) -> Compiled:
        match node:
            case Literal(literal):
                return _constant(literal)
            case Name(name):
                return _name(name, kinds)
            case Select(target, name, is_test):
                return self._select(self._compile(target, kinds), name, is_test=is_test)
            case Index(target, key):
                return self._index(self._compile(target, kinds), key, self.value(key, kinds))
            case ListOf(items):
                return self._list([self.value(item, kinds) for item in items])
            case Bind(name, value, body):
                return self._bind(name, self._compile(value, kinds), body, kinds)
            case Quantified(is_all, target, name, body):
                inner = self.value(body, {**kinds, name: VALUE})
                looped = self.value(target, kinds)
                names = looped.names | (inner.names - {name})
                return self._folded(_loop(looped.evaluate, name, inner, is_all=is_all), PART + looped.cost, names)
            case Call(name, args, target):
                if name == "in":
                    return self._in(args[0], args[1], kinds)
                _check_call(name, len(args), is_method=target is not None)
                values = [self.value(arg, kinds) for arg in args]
                if target is not None:
                    return self._method(name, self.value(target, kinds), values)
                return self._function(name, values)

    # -- what looks something up

    def _select(self, target: Compiled, name: str, *, is_test: bool) -> Compiled:
        cost = PART + target.cost
        if target.kind == DEVICE:
            kinds = {"driver": VALUE, "allowMultipleAllocations": VALUE, "attributes": DOMAINS, "capacity": DOMAINS}
            if name not in kinds or is_test:
                raise Unsupported(f"has(device.{name})" if is_test else f"device.{name}")
            return Compiled(lambda scope: scope.device[name], cost, kinds[name], target.names)
        if target.kind == VALUE or (is_test and target.kind == DOMAINS):
            raise Unsupported(f"the field {name} of a value")
        if target.kind == DOMAIN:
            self.reads.names.add(name)
        if is_test:
            return Compiled(lambda scope: contains(scope.meter, target.evaluate(scope), name), cost, names=target.names)
        kind = DOMAIN if target.kind == DOMAINS else VALUE
        return Compiled(_lookup(target.evaluate, lambda scope: name), cost, kind, target.names)

    def _index(self, target: Compiled, key: Node, compiled_key: Compiled) -> Compiled:
        if target.kind == DEVICE:
            raise Unsupported("device[...]")
        if target.kind == DOMAIN:
            self._note(key)
        cost = PART + target.cost + compiled_key.cost
        kind = DOMAIN if target.kind == DOMAINS else VALUE
        names = target.names | compiled_key.names
        return self._folded(_lookup(target.evaluate, compiled_key.evaluate), cost, names, kind)

    def _note(self, key: Node) -> None:
        if isinstance(key, Literal):
            self.reads.names.add(str(key.value))
        else:
            self.reads.is_complete = False

    def _in(self, item: Node, container: Node, kinds: Mapping[str, str]) -> Compiled:
        searched, wanted = self._compile(container, kinds), self.value(item, kinds)
        if searched.kind == DEVICE:
            raise Unsupported("`in` device")
        if searched.kind == DOMAIN:
            self._note(item)
        self.reads.domains |= searched.kind == DOMAINS
        cost, names, item_of = PART + searched.cost + wanted.cost, searched.names | wanted.names, wanted.evaluate
        if isinstance(searched.constant, tuple):
            return self._folded(_in_known(item_of, searched.constant), cost, names)
        return self._folded(lambda scope: contains(scope.meter, searched.evaluate(scope), item_of(scope)), cost, names)

    # -- what computes

    def _list(self, items: list[Compiled]) -> Compiled:
        parts = [item.evaluate for item in items]
        cost = PART + sum(item.cost + ITEM for item in items)
        return self._folded(lambda scope: tuple([part(scope) for part in parts]), cost, _names(items))

    def _folded(self, evaluate: Evaluate, cost: int, names: frozenset[str], kind: str = VALUE) -> Compiled:
        """A part of an expression; its value, if that depends on nothing."""
        if not names:
            self._meter.spend(cost)
            try:
                return _constant(evaluate(Scope({}, self._meter)))
            except Failed:
                pass  # It fails whenever it is evaluated, which may be never.
        return Compiled(evaluate, cost, kind, names)

    def _bind(self, name: str, bound: Compiled, body: Node, kinds: Mapping[str, str]) -> Compiled:
        inner, evaluate = self._compile(body, {**kinds, name: bound.kind}), bound.evaluate

        def bind(scope: Scope) -> Value:
            try:
                value: Value | Failed = evaluate(scope)
            except Failed as error:
                scope.meter.spend(FAILURE)
                value = error  # It fails where it is used, if it is.
            return _with(scope, name, value, inner.evaluate)

        names = bound.names | (inner.names - {name})
        return self._folded(bind, BIND + bound.cost + inner.cost, names, inner.kind)

    def _function(self, name: str, args: list[Compiled]) -> Compiled:
        names = _names(args)
        if name in ("||", "&&"):
            return self._folded(_logic([arg.paid() for arg in args], decides=name == "||"), PART, names)
        if name == "?:":
            condition, yes, no = args
            return self._folded(_choice(condition.evaluate, yes.paid(), no.paid()), PART + condition.cost, names)
        return self._applied(FUNCTIONS[name][1], args)

    def _method(self, name: str, target: Compiled, args: list[Compiled]) -> Compiled:
        parts = [target, *args]
        if name == "matches":
            cost = PART + sum(part.cost for part in parts)
            return self._folded(self._matches(target.evaluate, args[0]), cost, _names(parts))
        return self._applied(METHODS[name][1], parts)

    def _applied(self, apply: Pure, parts: list[Compiled]) -> Compiled:
        cost, names = PART + sum(part.cost for part in parts), _names(parts)
        if len(parts) == 1:
            only = parts[0].evaluate
            return self._folded(lambda scope: apply(scope.meter, only(scope)), cost, names)
        first, second = (part.evaluate for part in parts)
        return self._folded(lambda scope: apply(scope.meter, first(scope), second(scope)), cost, names)

    def _matches(self, target: Evaluate, wanted: Compiled) -> Evaluate:
        if isinstance(wanted.constant, str):
            try:
                check_pattern(wanted.constant, self._meter)
            except BadPattern as error:
                raise Unsupported(f"the pattern of matches(): {error}") from error
        pattern_text = wanted.evaluate

        def search(scope: Scope) -> bool:
            text, pattern = target(scope), pattern_text(scope)
            if not isinstance(text, str) or not isinstance(pattern, str):
                raise Failed("matches() takes texts")
            try:
                return matches(text, pattern, scope.meter)
            except BadPattern as error:
                raise Failed(str(error)) from None

        return search


def _names(parts: list[Compiled]) -> frozenset[str]:
    return NO_NAMES.union(*(part.names for part in parts))


def _constant(value: Value) -> Compiled:
    return Compiled(lambda scope: value, constant=value)


def _name(name: str, kinds: Mapping[str, str]) -> Compiled:
    if name in kinds:

        def variable(scope: Scope) -> Value:
            found = scope.names[name]
            if isinstance(found, Failed):
                raise Failed(str(found))
            return found

        return Compiled(variable, kind=kinds[name], names=frozenset({name}))
    if name != "device":
        raise Unsupported(f"the name {name}")
    return Compiled(lambda scope: scope.device, kind=DEVICE, names=frozenset({name}))


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


def _in_known(item: Evaluate, container: tuple[Value, ...]) -> Evaluate:
    """`in` a list that is the same on all devices: looked up, however long it is."""
    scalars = frozenset((type(each), each) for each in container if isinstance(each, str | int))
    others = tuple(each for each in container if not isinstance(each, str | int))

    def is_in(scope: Scope) -> bool:
        wanted = item(scope)
        if not isinstance(wanted, str | int):
            return contains(scope.meter, others, wanted)
        scope.meter.spend_on_text(len(wanted) if isinstance(wanted, str) else 0)
        return (type(wanted), wanted) in scalars

    return is_in


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


def _loop(target: Evaluate, name: str, body: Compiled, *, is_all: bool) -> Evaluate:
    evaluate, cost = body.evaluate, BIND + body.cost

    def loop(scope: Scope) -> bool:
        items, failure = target(scope), None
        if not isinstance(items, tuple):
            raise Failed("loops take a list")
        for item in items:
            scope.meter.spend(cost)
            try:
                found = _with(scope, name, item, evaluate)
            except Failed as error:
                scope.meter.spend(FAILURE)
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
                scope.meter.spend(FAILURE)
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
