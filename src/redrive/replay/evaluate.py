"""What does an expression do to a message?

Carries out what `expression.parse` has found to be in order: node by node, on plain JSON values, by the tables here.

The rule: everything that is built is paid for before it is built, from one budget for the whole run, and a number that
is computed has at most 34 digits. So no message, however strange, makes a run long or large. What does not fit the
message is a `FormatError`; the message itself is a copy, and nobody sees it half changed.
"""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import (
    ROUND_HALF_EVEN,
    Context,
    Decimal,
    DecimalException,
    DivisionByZero,
    InvalidOperation,
    Overflow,
)
from types import MappingProxyType
from typing import Final, NamedTuple

from redrive.errors import FormatError
from redrive.replay.plain import Json, Opaque, read_json, same

LARGEST: Final = 16 * 1024 * 1024  # bytes, roughly, that one run may build
_A_VALUE: Final = 16  # what a value costs beside its text
MOST_DIGITS: Final = 34  # of a number that is computed: what IEEE's decimal128 holds
WORDS: Final[Mapping[str, Json]] = MappingProxyType({"true": True, "false": False, "null": None})
_exact: Final = Context(prec=MOST_DIGITS, rounding=ROUND_HALF_EVEN, Emin=-6143, Emax=6144,
                        traps=[InvalidOperation, DivisionByZero, Overflow])  # fmt: skip

OPERATORS: Final[Mapping[type[ast.operator], str]] = MappingProxyType(
    {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"}
)
COMPARISONS: Final[Mapping[type[ast.cmpop], str]] = MappingProxyType(
    {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.In: "in",
     ast.NotIn: "not in"}
)  # fmt: skip


class Unreadable(NamedTuple):
    """Stands for a body that is not JSON: it can be set, not looked at."""

    why: str


def run(statements: Sequence[ast.stmt], body: Json, headers: dict[str, Json]) -> tuple[Json, dict[str, Json]]:
    """Body and headers after the statements; what was given is changed. A `FormatError` says what does not fit."""
    state = _Run(body, headers)
    for statement in statements:
        try:
            state.carry_out(statement)
        except RecursionError:
            raise FormatError(f"a value is nested too deeply (in: {shown(statement)})") from None
    return state.roots["body"], headers


class _Run:
    """One run on one message."""

    def __init__(self, body: Json, headers: dict[str, Json]) -> None:
        self.roots: dict[str, Json] = {"body": body, "headers": headers}
        self._left = LARGEST

    def spend(self, amount: int) -> None:
        """Count what is about to be built, before it is."""
        self._left -= amount
        if self._left < 0:
            raise FormatError(
                f"the expression builds more than {LARGEST // 1024 // 1024} MiB, which is the limit"
            )

    def carry_out(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=[target], value=value):
                self._set(target, self.value(value))
            case ast.AugAssign(target=target, op=op, value=value):
                self._set(target, self._binary(statement, op, self.value(target), self.value(value)))
            case ast.Delete(targets=targets):
                for target in targets:
                    container, key = self._place(target)
                    _item(container, key, target)
                    del container[key]

    def _set(self, target: ast.expr, value: Json) -> None:
        value = self._copy(value)
        if isinstance(target, ast.Name):
            self.roots[target.id] = value
            return
        container, key = self._place(target)
        if isinstance(container, list):
            _item(container, key, target)
        container[key] = value

    def _place(self, target: ast.expr) -> tuple[Json, Json]:
        """The object or list that holds the target, and its place in there."""
        if not isinstance(target, ast.Attribute | ast.Subscript):
            raise FormatError(f"not an assignable target (in: {shown(target)})")
        container = self.value(target.value)
        key = target.attr if isinstance(target, ast.Attribute) else self.value(target.slice)
        if isinstance(container, dict) and isinstance(key, str):
            return container, key
        if isinstance(container, list) and type(key) is int:
            return container, key
        raise FormatError(f"{shown(target.value)} is {_kind(container)} and has no member {_quoted(key)}")

    def _copy(self, value: Json) -> Json:
        """A value of its own: two places never share one, so nothing can contain itself."""
        self.spend(_A_VALUE)
        if isinstance(value, list):
            return [self._copy(item) for item in value]
        if isinstance(value, dict):
            self.spend(sum(map(len, value)))
            return {key: self._copy(item) for key, item in value.items()}
        if isinstance(value, str):
            self.spend(len(value))
        return value

    def value(self, node: ast.expr) -> Json:
        """What a part of the expression is worth."""
        match node:
            case ast.Constant(value=float() as value):
                return Decimal(repr(value))
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._named(name)
            case ast.Attribute(value=inner, attr=name):
                return _item(self.value(inner), name, node)
            case ast.Subscript(value=inner, slice=ast.Slice() as piece):
                return self._slice(node, self.value(inner), piece)
            case ast.Subscript(value=inner, slice=index):
                return _item(self.value(inner), self.value(index), node)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(node, op, self.value(left), self.value(right))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not _truth(self.value(operand), node)
            case ast.UnaryOp(op=op, operand=operand):
                number = _number(self.value(operand), node)
                return _negated(number) if isinstance(op, ast.USub) else number
            case ast.BoolOp(op=op, values=values):
                wanted = isinstance(op, ast.Or)
                return wanted if any(_truth(self.value(v), node) is wanted for v in values) else not wanted
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self._compare(node, left, ops, others)
            case ast.IfExp(test=test, body=yes, orelse=no):
                return self.value(yes if _truth(self.value(test), node) else no)
            case ast.List(elts=items):
                return [self.value(item) for item in items]
            case ast.Dict(keys=keys, values=values):
                return self._object(node, keys, values)
            case ast.Call(func=ast.Name(id=name), args=args):
                return FUNCTIONS[name][2](self, node, *(self.value(arg) for arg in args))
        raise FormatError(f"not part of the language (in: {shown(node)})")

    def _named(self, name: str) -> Json:
        value = self.roots[name] if name in self.roots else WORDS[name]
        if isinstance(value, Unreadable):
            raise FormatError(value.why)
        return value

    def _object(self, node: ast.expr, keys: list[ast.expr | None], values: list[ast.expr]) -> Json:
        made: dict[str, Json] = {}
        for key, value in zip(keys, values, strict=True):
            name = self.value(key) if key is not None else None
            if not isinstance(name, str):
                raise FormatError(
                    f"the name of a member must be a string, not {_quoted(name)} (in: {shown(node)})"
                )
            made[name] = self.value(value)
        return made

    def _slice(self, node: ast.expr, value: Json, piece: ast.Slice) -> Json:
        ends = [self.value(end) if end is not None else None for end in (piece.lower, piece.upper)]
        if not isinstance(value, str | list) or any(end is not None and type(end) is not int for end in ends):
            raise FormatError(f"a slice takes a string or a list, and integers (in: {shown(node)})")
        self.spend(len(value) if isinstance(value, str) else _A_VALUE * len(value))
        return value[ends[0] : ends[1]]

    def _binary(self, node: ast.AST, op: ast.operator, left: Json, right: Json) -> Json:
        if isinstance(op, ast.Add):
            if isinstance(left, str) and isinstance(right, str):
                self.spend(len(left) + len(right))
                return left + right
            if isinstance(left, list) and isinstance(right, list):
                self.spend(_A_VALUE * (len(left) + len(right)))
                return [*left, *right]
        a, b = _number(left, node), _number(right, node)
        try:
            return _computed(op, a, b, node)
        except ZeroDivisionError:  # decimal's own is one of these
            raise FormatError(f"division by zero (in: {shown(node)})") from None
        except DecimalException:
            raise FormatError(f"the number is out of range (in: {shown(node)})") from None

    def _compare(self, node: ast.expr, left: ast.expr, ops: list[ast.cmpop], others: list[ast.expr]) -> bool:
        a = self.value(left)
        for op, other in zip(ops, others, strict=True):
            b = self.value(other)
            if not _holds(COMPARISONS[type(op)], a, b, node):
                return False
            a = b
        return True


def _computed(op: ast.operator, a: int | Decimal, b: int | Decimal, node: ast.AST) -> int | Decimal:
    symbol = OPERATORS[type(op)]
    if symbol in {"//", "%"}:
        if isinstance(a, Decimal) or isinstance(b, Decimal):
            raise FormatError(f"{symbol} takes integers (in: {shown(node)})")
        return _digits(a // b if symbol == "//" else a % b, node)
    if isinstance(a, int) and isinstance(b, int):
        _digits(a, node), _digits(b, node)
        if symbol == "/" and b and a % b == 0:
            return _digits(a // b, node)
        if symbol != "/":
            return _digits(a + b if symbol == "+" else a - b if symbol == "-" else a * b, node)
    x, y = Decimal(a), Decimal(b)
    match symbol:
        case "+":
            return _exact.add(x, y)
        case "-":
            return _exact.subtract(x, y)
        case "*":
            return _exact.multiply(x, y)
    return _exact.divide(x, y)


def _holds(symbol: str, a: Json, b: Json, node: ast.AST) -> bool:
    if symbol in {"==", "!="}:
        return same(a, b) is (symbol == "==")
    if symbol in {"in", "not in"}:
        return _contains(b, a, node) is (symbol == "in")
    if not (isinstance(a, str) and isinstance(b, str)):
        a, b = _number(a, node), _number(b, node)
    if symbol == "<":
        return bool(a < b)
    if symbol == "<=":
        return bool(a <= b)
    return bool(a > b) if symbol == ">" else bool(a >= b)


def _contains(whole: Json, part: Json, node: ast.AST) -> bool:
    match whole:
        case list():
            return any(same(part, item) for item in whole)
        case dict():
            return isinstance(part, str) and part in whole
        case str() if isinstance(part, str):
            return part in whole
    raise FormatError(f"{_kind(whole)} cannot contain {_quoted(part)} (in: {shown(node)})")


def _item(container: Json, key: Json, node: ast.AST) -> Json:
    inner = shown(node.value) if isinstance(node, ast.Attribute | ast.Subscript) else "it"
    if isinstance(container, dict) and isinstance(key, str):
        if key in container:
            return container[key]
        raise FormatError(f"{inner} has no {_quoted(key)}")
    if isinstance(container, str | list) and type(key) is int:
        if -len(container) <= key < len(container):
            return container[key]
        raise FormatError(f"{inner} has {len(container)} items and no item {key!s:.20}")
    raise FormatError(f"{inner} is {_kind(container)} and has no {_quoted(key)}")


def _negated(number: int | Decimal) -> int | Decimal:
    return number.copy_negate() if isinstance(number, Decimal) else -number  # a minus of its own would round


def _number(value: Json, node: ast.AST) -> int | Decimal:
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return value
    raise FormatError(f"{_kind(value)} is not a number (in: {shown(node)})")


def _digits(value: int, node: ast.AST) -> int:
    if abs(value) >= 10**MOST_DIGITS:
        raise FormatError(f"a number has more than {MOST_DIGITS} digits (in: {shown(node)})")
    return value


def _truth(value: Json, node: ast.AST) -> bool:
    if isinstance(value, bool):
        return value
    raise FormatError(f"{_kind(value)} is not true or false; use a comparison (in: {shown(node)})")


def _kind(value: Json) -> str:
    if value is None:
        return "null"
    if isinstance(value, Opaque):
        return "a header value that JSON cannot represent"
    names = {bool: "true or false", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), "a number")


def _quoted(key: Json) -> str:
    return (
        f"'{key:.40}'" if isinstance(key, str) else _kind(key) if not isinstance(key, int) else f"{key!s:.20}"
    )


# --- functions -------------------------------------------------------------------------------------------


def _text(value: Json, node: ast.AST) -> str:
    if isinstance(value, str):
        return value
    raise FormatError(f"{_kind(value)} is not a string (in: {shown(node)})")


_WHOLE: Final = re.compile(r"\s*[+-]?\d{1,34}\s*", re.ASCII)
_FRACTION: Final = re.compile(r"\s*[+-]?\d{1,34}(?:\.\d{1,34})?(?:[eE][+-]?\d{1,3})?\s*", re.ASCII)


def _int(_: _Run, node: ast.AST, value: Json) -> int:
    if isinstance(value, str):
        if _WHOLE.fullmatch(value) is None:
            raise FormatError(f"'{value:.40}' is not an integer (in: {shown(node)})")
        return int(value)
    number = _number(value, node)
    # A look at the size first: 1e999999999 has a billion digits as a whole number.
    if isinstance(number, Decimal) and number.adjusted() >= MOST_DIGITS:
        raise FormatError(f"a number has more than {MOST_DIGITS} digits (in: {shown(node)})")
    return _digits(int(number), node)


def _float(_: _Run, node: ast.AST, value: Json) -> Decimal:
    if isinstance(value, str):
        if _FRACTION.fullmatch(value) is None:
            raise FormatError(f"'{value:.40}' is not a number (in: {shown(node)})")
        value = Decimal(value.strip())
    number = Decimal(_number(value, node))
    exponent = number.as_tuple().exponent
    if isinstance(exponent, int) and exponent < 0:
        return number
    try:
        return number.quantize(
            Decimal("0.1"), context=_exact
        )  # 3 becomes 3.0, which readers take for a fraction
    except DecimalException:
        return number


def _str(run: _Run, node: ast.AST, value: Json) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(_digits(value, node))
        case Decimal():
            run.spend(len(value.as_tuple().digits))
            return str(value)
    raise FormatError(f"{_kind(value)} cannot be converted to a string (in: {shown(node)})")


def _len(_: _Run, node: ast.AST, value: Json) -> int:
    if isinstance(value, str | list | dict):
        return len(value)
    raise FormatError(f"{_kind(value)} has no length (in: {shown(node)})")


def _round(_: _Run, node: ast.AST, value: Json, places: Json = 0) -> int | Decimal:
    number = _number(value, node)
    if type(places) is not int or not 0 <= places <= MOST_DIGITS:
        raise FormatError(f"round takes 0 to {MOST_DIGITS} places (in: {shown(node)})")
    if isinstance(number, int):
        return number
    try:
        rounded = number.quantize(Decimal(1).scaleb(-places), context=_exact)
    except DecimalException:
        raise FormatError(f"a number has more than {MOST_DIGITS} digits (in: {shown(node)})") from None
    return rounded if places else int(rounded)


def _changed(change: Callable[[str], str]) -> "Function":
    def function(run: _Run, node: ast.AST, value: Json) -> str:
        run.spend(3 * len(_text(value, node)))  # the most that a change of case adds
        return change(value)

    return function


def _replace(run: _Run, node: ast.AST, value: Json, old: Json, new: Json) -> str:
    text, gone, come = _text(value, node), _text(old, node), _text(new, node)
    if not gone:
        raise FormatError(f"replace needs a non-empty string to search for (in: {shown(node)})")
    run.spend(len(text) + text.count(gone) * max(0, len(come) - len(gone)))
    return text.replace(gone, come)


def _json(run: _Run, node: ast.AST, value: Json) -> Json:
    text = _text(value, node)
    run.spend(len(text))
    return read_json(text, "the text")


def _get(_: _Run, node: ast.AST, value: Json, key: Json, default: Json = None) -> Json:
    if not isinstance(value, dict) or not isinstance(key, str):
        raise FormatError(f"get takes an object and the name of a member (in: {shown(node)})")
    return value.get(key, default)


Function = Callable[..., Json]
# name → least and most values it takes, and what it does
FUNCTIONS: Final[Mapping[str, tuple[int, int, Function]]] = MappingProxyType(
    {
        "int": (1, 1, _int),
        "float": (1, 1, _float),
        "str": (1, 1, _str),
        "len": (1, 1, _len),
        "round": (1, 2, _round),
        "lower": (1, 1, _changed(str.lower)),
        "upper": (1, 1, _changed(str.upper)),
        "strip": (1, 1, _changed(str.strip)),
        "replace": (3, 3, _replace),
        "json": (1, 1, _json),
        "get": (2, 3, _get),
    }
)


def shown(node: ast.AST) -> str:
    """A part of an expression as it was written, for errors."""
    try:
        text = ast.unparse(node)
    except (RecursionError, ValueError):
        return "…"
    return text if len(text) <= 60 else text[:59] + "…"
