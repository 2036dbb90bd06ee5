"""How are many letters changed by one line?

    body.total = body.total * 100; headers["x-tenant"] = "north"; del body.note

Assignments and deletions on `body` and `headers`, in Python's own notation, read by Python's parser and carried out by
the table of nodes below: what is not in the table does not exist. There are no loops, no names of one's own, no access
to Python's objects, and no calls but a few pure functions; a dot means a member of a JSON object and nothing else.

The rule: the same expression on the same message gives the same message, in bounded time and memory. Text, nodes, depth
and all that is built on the way have limits. It knows no clock: an edit that tells the time would not repeat.
"""

import ast
import keyword
import re
import warnings
from typing import Final, NamedTuple, NoReturn

from redrive.errors import SettingsError, use_instead
from redrive.replay.evaluate import COMPARISONS, FUNCTIONS, MOST_DIGITS, OPERATORS, WORDS, shown

LONGEST: Final = 4096  # characters of an expression
MOST_NODES: Final = 500
DEEPEST: Final = 40

_ROOTS: Final = ("body", "headers")

_STRUCTURE: Final = (
    ast.Module, ast.Assign, ast.AugAssign, ast.Delete, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Constant,
    ast.BinOp, ast.UnaryOp, ast.USub, ast.UAdd, ast.Not, ast.BoolOp, ast.And, ast.Or, ast.Compare, ast.IfExp, ast.List,
    ast.Dict, ast.Call, ast.Load, ast.Store, ast.Del, *OPERATORS, *COMPARISONS,
)  # fmt: skip


class Program(NamedTuple):
    """An expression that was found to be in order."""

    statements: tuple[ast.stmt, ...]
    uses_body: bool
    uses_headers: bool


# --- reading ---------------------------------------------------------------------------------------------


def parse(text: str) -> Program:
    """The expression as a program, or a `SettingsError` that says what is wrong with it."""
    if len(text) > LONGEST:
        raise SettingsError(f"the expression has {len(text)} characters; the limit is {LONGEST}")
    tree = _tree(text.strip())
    if not tree.body:
        raise SettingsError('the expression is empty; write for example body.total = 5 or del headers["x"]')
    _check_size(tree)
    names = set()
    calls = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if not isinstance(node, _STRUCTURE):
            _refuse(node, f"{_name_of(node)} is not part of the language")
        _check_node(node)
        if isinstance(node, ast.Name) and id(node) not in calls:
            if node.id not in _ROOTS and node.id not in WORDS:
                _refuse(node, f"unknown name '{node.id:.40}'{use_instead(node.id, _ROOTS)}")
            names.add(node.id)
    for statement in tree.body:
        _check_statement(statement)
    return Program(tuple(tree.body), "body" in names, "headers" in names)


def _tree(text: str) -> ast.Module:
    try:
        # The parser warns of odd escapes and literals to standard error; they are no concern of an edit.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        word = re.search(rf"\.\s*({'|'.join(keyword.kwlist)})\b", text)
        hint = f'; write ["{word[1]}"] instead of .{word[1]}' if word else ""
        place = f" at character {error.offset}" if error.offset else ""
        raise SettingsError(f"syntax error in the expression{place}: {error.msg}{hint}") from None
    except (ValueError, RecursionError, MemoryError):  # NUL, lone surrogates; too deep for the parser
        raise SettingsError("syntax error in the expression: not text, or nested too deeply") from None


def _check_size(tree: ast.Module) -> None:
    level: list[ast.AST] = [tree]
    nodes = depth = 0
    while level:
        nodes, depth = nodes + len(level), depth + 1
        if nodes > MOST_NODES:
            raise SettingsError(f"the expression has more than {MOST_NODES} parts; split it")
        if depth > DEEPEST:
            raise SettingsError(f"the expression is nested deeper than {DEEPEST} levels; split it")
        level = [
            child
            for node in level
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, ast.expr_context)
        ]


def _check_statement(statement: ast.stmt) -> None:
    match statement:
        case ast.Assign(targets=[target]) | ast.AugAssign(target=target):
            targets = [target]
        case ast.Delete(targets=targets):
            pass
        case _:
            _refuse(statement, "assign one value to one target")
    for target in targets:
        place = target
        while isinstance(place, ast.Attribute | ast.Subscript):
            place = place.value
        if not isinstance(place, ast.Name) or place.id not in _ROOTS:
            _refuse(target, "only members of body and headers can be changed")
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice):
            _refuse(target, "a slice cannot be changed")
        if isinstance(target, ast.Name):
            if target.id == "headers":
                _refuse(target, 'set headers one by one: headers["name"] = …')
            if isinstance(statement, ast.Delete):
                _refuse(target, "the body cannot be deleted; body = null empties it")


def _check_node(node: ast.AST) -> None:
    match node:
        case ast.Constant(value=value):
            if type(value) not in {str, int, float, bool, type(None)}:
                _refuse(node, "a literal must be a string, a number, true, false or null")
            if type(value) in {int, float} and not abs(value) < 10**MOST_DIGITS:  # type: ignore[arg-type]
                _refuse(node, f"a number must have at most {MOST_DIGITS} digits")
        case ast.Attribute(attr=name) if not name.isascii():
            _refuse(node, f'write ["{name}"] instead of .{name}')  # Python would change such a name by itself
        case ast.Dict(keys=keys) if None in keys:
            _refuse(node, "** is not part of the language")
        case ast.Slice(step=step) if step is not None:
            _refuse(node, "a slice with a step is not supported")
        case ast.Call():
            _check_call(node)
        case _:
            pass


def _check_call(node: ast.Call) -> None:
    if isinstance(node.func, ast.Attribute):
        name = node.func.attr
        _refuse(node, f"methods are not supported{f'; write {name}(…)' if name in FUNCTIONS else ''}")
    if not isinstance(node.func, ast.Name):
        _refuse(node, "only functions can be called")
    if node.func.id not in FUNCTIONS:
        _refuse(node, f"unknown function '{node.func.id:.40}'{use_instead(node.func.id, FUNCTIONS)}")
    least, most, _ = FUNCTIONS[node.func.id]
    if node.keywords or not least <= len(node.args) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        _refuse(node, f"{node.func.id} takes {wanted} value{'s' if most > 1 else ''}")


def _refuse(node: ast.AST, why: str) -> NoReturn:
    raise SettingsError(f"{why} (in: {shown(node)})")


def _name_of(node: ast.AST) -> str:
    known: dict[type[ast.AST], str] = {
        ast.Pow: "**", ast.Lambda: "lambda", ast.JoinedStr: "an f-string", ast.Import: "import", ast.For: "a loop",
        ast.While: "a loop", ast.ListComp: "a loop", ast.GeneratorExp: "a loop",
        ast.Expr: "a value without an assignment",
        ast.NamedExpr: ":=", ast.Starred: "*", ast.Tuple: "a tuple", ast.If: "an if statement",
    }  # fmt: skip
    return known.get(type(node), type(node).__name__)
