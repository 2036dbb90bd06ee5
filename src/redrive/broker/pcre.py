r"""Translate the regular expressions of RabbitMQ into those of the `regex` package.

RabbitMQ matches names with Erlang's `re`, which is PCRE2 on octets, with letters of ASCII only. The rule:
a pattern has the meaning that it has there, or it is refused. So the whole pattern is read here, and what is written
for `regex` leaves nothing to its own dialect: literals and classes are spelled out as code points from 0 to 255, inline
options become scoped groups, and anything without a counterpart is an error. Mistakes have PCRE2's text and offset,
because the management API reports both.

Not supported, and refused with a text that says so: recursion and subroutine calls, backtracking verbs, conditions
other than on a group, `\X`, and options other than `i`, `m`, `s` and `x`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

# Compiling cannot be interrupted, so what is compiled is bounded.
MAX_LENGTH: Final = 4096  # octets of a pattern
_MAX_WRITTEN: Final = 16_384  # characters of its translation
_MAX_SIZE: Final = 4096  # its items, with the copies that `regex` makes of what is repeated
_MAX_DEPTH: Final = 50  # nested parentheses
_MAX_REPEAT: Final = 65_535
_TOO_LARGE: Final = "regular expression is too large"


def _ranges(text: str) -> tuple[tuple[int, int], ...]:
    """The code points of a class, written as characters and ranges such as `a-z`."""
    found = re.findall("(.)-(.)|(.)", text, re.DOTALL)
    return tuple((ord(low or one), ord(high or one)) for low, high, one in found)


def _complement(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    gaps, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            gaps.append((start, low - 1))
        start = max(start, high + 1)
    return (*gaps, (start, 255)) if start < 256 else tuple(gaps)


_WORD: Final = "0-9A-Za-z_"
_SPACE: Final = "\t-\r "
_POSIX: Final = {
    name: _ranges(text)
    for name, text in {
        "alnum": "0-9A-Za-z",
        "alpha": "A-Za-z",
        "ascii": "\0-\x7f",
        "blank": "\t ",
        "cntrl": "\0-\x1f\x7f",
        "digit": "0-9",
        "graph": "!-~",
        "lower": "a-z",
        "print": " -~",
        "punct": "!-/:-@[-`{-~",
        "space": _SPACE,
        "upper": "A-Z",
        "word": _WORD,
        "xdigit": "0-9A-Fa-f",
    }.items()
}
_SHORTHANDS: Final = {
    letter: _ranges(text)
    for letter, text in {"d": "0-9", "w": _WORD, "s": _SPACE, "h": "\t \xa0", "v": "\n-\r\x85"}.items()
}
_CLASSES: Final = _SHORTHANDS | {
    letter.upper(): _complement(ranges) for letter, ranges in _SHORTHANDS.items()
}
_ASSERTIONS: Final = {"A": r"\A", "Z": r"(?=\n?\Z)", "z": r"\Z", "b": r"\b", "B": r"\B", "G": r"\G"}
_ITEMS: Final = {
    "N": r"[^\x0a]",
    "R": r"(?>\x0d\x0a|[\x0a-\x0d\x85])",
    "C": r"[\x00-\xff]",
}
_CHARACTERS: Final = {"a": 0x07, "e": 0x1B, "f": 0x0C, "n": 0x0A, "r": 0x0D, "t": 0x09}
_QUANTIFIER: Final = re.compile(r"\{[ \t]*([0-9]*)[ \t]*(?:(,)[ \t]*([0-9]*)[ \t]*)?\}")
_NAME: Final = "[A-Za-z_][A-Za-z0-9_]{0,127}"
_NAMED_GROUP: Final = re.compile(rf"\(\?(?:P?<({_NAME})>|'({_NAME})')")
_OPTIONS: Final = re.compile(r"\(\?(\^?)([imsx]*)(?:-([imsx]*))?([:)])")
_BACK_REFERENCE: Final = re.compile(
    rf"\\g(-?[0-9]+)|\\g\{{(-?[0-9]+|{_NAME})\}}|\\k(?:<({_NAME})>|'({_NAME})'|\{{({_NAME})\}})"
)
_NO_GROUP: Final = "reference to non-existent subpattern"
_UNSUPPORTED: Final = "is not supported by this broker"
_CODE_TOO_LARGE: Final = r"character code point value in \x{} or \o{} is too large"


class PatternError(ValueError):
    """A pattern is wrong. `text` is PCRE2's where it has one; `position` is how many octets had been read."""

    def __init__(self, text: str, position: int) -> None:
        super().__init__(f"{text} (at offset {position})")
        self.text = text
        self.position = position


def translate(pattern: str) -> str:
    """The pattern for `regex`, to be searched for in text whose characters are octets; raises `PatternError`."""
    if len(pattern) > MAX_LENGTH:
        raise PatternError(f"{_TOO_LARGE} (more than {MAX_LENGTH} octets)", MAX_LENGTH)
    return _Translator(pattern).run()


@dataclass
class _Group:
    """An open parenthesis, or the whole pattern."""

    extended: bool  # whether whitespace was ignored outside
    behind: int | None = None  # where the look-behind starts that it is, or that it is in
    size: int = 0  # items inside, with mandatory repetitions
    scopes: list[str] = field(default_factory=list)  # inline options that hold until the group ends


class _Translator:
    """Reads a pattern once, from left to right."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._out: list[str] = []
        self._stack = [_Group(extended=False)]
        self._extended = False
        self._groups = 0
        self._names: set[str] = set()
        self._repeatable = False  # whether a quantifier may follow what was written last
        self._size = 0  # of what was written last

    def run(self) -> str:
        source = self._source
        while self._at < len(source):
            char = source[self._at]
            if self._extended and char in " \t\n\v\f\r":
                self._at += 1
            elif self._extended and char == "#":
                end = source.find("\n", self._at)
                self._at = len(source) if end < 0 else end + 1
            else:
                self._item(char)
        if len(self._stack) > 1:
            self._fail("missing closing parenthesis", len(source))
        written = "".join(self._out) + ")" * len(self._stack[0].scopes)
        if len(written) > _MAX_WRITTEN:
            self._fail(_TOO_LARGE, len(source))
        return written

    def _item(self, char: str) -> None:
        match char:
            case "\\":
                self._escape()
            case "[":
                self._class()
            case "(":
                self._open()
            case ")":
                self._close()
            case "|":
                scopes = self._stack[-1].scopes
                self._put(")" * len(scopes) + "|" + "".join(scopes), 1, repeatable=False)
            case "*" | "+" | "?":
                self._quantify(char, self._at + 1, 2 if char == "+" else 1)
            case "{" if found := _QUANTIFIER.match(self._source, self._at):
                self._braces(found)
            case "^" | "$":
                self._put(char, 1, repeatable=False)
            case ".":
                self._put(char, 1)
            case _:
                self._put(_literal(ord(char)), 1)

    def _put(self, written: str, read: int, *, repeatable: bool = True, size: int = 1) -> None:
        self._out.append(written)
        self._at += read
        self._repeatable = repeatable
        self._size = size
        group = self._stack[-1]
        group.size += size
        if group.size > _MAX_SIZE:
            self._fail(_TOO_LARGE, self._at)

    def _fail(self, text: str, position: int) -> NoReturn:
        raise PatternError(text, position)

    def _refuse(self, length: int) -> NoReturn:
        what = self._source[self._at : self._at + length]
        raise PatternError(f"{what} {_UNSUPPORTED}", self._at + length)

    # --- quantifiers ---------------------------------------------------------------------------------------

    def _braces(self, found: re.Match[str]) -> None:
        low, comma, high = found.groups()
        if not low and not high:
            self._put(r"\{", 1)  # `{}` and `{,}` are literal
            return
        if any(len(number) > 5 or int(number) > _MAX_REPEAT for number in (low, high) if number):
            self._fail("number too big in {} quantifier", found.end() - 1)
        if high and low and int(low) > int(high):
            self._fail("numbers out of order in {} quantifier", found.end() - 1)
        number = str(int(low or 0))
        written = f"{{{number}}}" if comma is None else f"{{{number},{int(high) if high else ''}}}"
        self._quantify(written, found.end(), int(low or 0) + (comma is not None and low not in {"", "0"}))

    def _quantify(self, written: str, end: int, copies: int) -> None:
        if not self._repeatable:
            self._fail("quantifier does not follow a repeatable item", end)
        behind = self._stack[-1].behind
        if behind is not None and (written in {"*", "+"} or written.endswith(",}")):
            self._fail("length of lookbehind assertion is not limited", behind)
        if self._source[end : end + 1] in {"?", "+"}:
            written += self._source[end]
            end += 1
        self._put(written, end - self._at, repeatable=False, size=self._size * max(copies - 1, 0))

    # --- escapes -------------------------------------------------------------------------------------------

    def _escape(self) -> None:
        source, at = self._source, self._at
        if at + 1 == len(source):
            self._fail("\\ at end of pattern", len(source))
        char = source[at + 1]
        if char == "Q":
            end = source.find("\\E", at + 2)
            quoted = source[at + 2 :] if end < 0 else source[at + 2 : end]
            for literal in quoted:
                self._put(_literal(ord(literal)), 0)
            self._at = len(source) if end < 0 else end + 2
        elif char in "EK":  # where the match starts does not matter here
            self._at += 2
        elif char in "gk":
            self._reference()
        elif char in "123456789":
            self._numbered()
        elif char in _ASSERTIONS:
            self._put(_ASSERTIONS[char], 2, repeatable=False)
        elif char in _ITEMS:
            self._put(_ITEMS[char], 2)
        elif char in _CLASSES:
            self._put(f"[{_spelled(_CLASSES[char])}]", 2)
        elif char in "pPX":
            self._refuse(2)
        else:
            code, end = self._character(at)
            self._put(_literal(code), end - at)

    def _reference(self) -> None:
        found = _BACK_REFERENCE.match(self._source, self._at)
        if found is None:
            self._refuse(2)  # a subroutine call, or a mistake
        which = next(part for part in found.groups() if part)
        length = found.end() - found.start()
        if which.lstrip("-").isdigit():
            number = self._groups + 1 + int(which) if which.startswith("-") else int(which)
            self._check_group(number, found.end())
            self._put(rf"(?:\{number})", length)
        else:
            self._check_name(which, found.start() + 3)
            self._put(f"(?P={which})", length)

    def _numbered(self) -> None:
        """A backslash and a number: a reference, or from 10 on perhaps the octal code of a character."""
        found = re.compile("[0-9]{1,5}").match(self._source, self._at + 1)
        digits = found.group() if found else ""
        if len(digits) == 1 or int(digits) <= self._groups:
            self._check_group(int(digits), self._at + 1 + len(digits))
            self._put(rf"(?:\{int(digits)})", 1 + len(digits))
        elif digits[0] in "89":
            self._check_group(int(digits), self._at + 1 + len(digits))
        else:
            octal = re.match("[0-7]{1,3}", digits)
            length = octal.end() if octal else 1
            self._put(_literal(int(digits[:length], 8) & 0xFF), 1 + length)

    def _check_group(self, number: int, position: int) -> None:
        if not 1 <= number <= self._groups:
            self._fail(_NO_GROUP, position)

    def _check_name(self, name: str, position: int) -> None:
        if name not in self._names:
            self._fail(_NO_GROUP, position)

    def _character(self, at: int) -> tuple[int, int]:
        """The code point of an escaped character outside or inside a class, and where it ends."""
        source, char = self._source, self._source[at + 1]
        if char in _CHARACTERS:
            return _CHARACTERS[char], at + 2
        if char == "c":
            if at + 2 >= len(source):
                self._fail(r"\c at end of pattern", len(source))
            return ord(source[at + 2].upper()) ^ 0x40, at + 3
        if char == "0":
            found = re.compile("[0-7]{1,3}").match(source, at + 1)
            digits = found.group() if found else "0"
            return int(digits, 8) & 0xFF, at + 1 + len(digits)
        if char in "xo" and source[at + 2 : at + 3] == "{":
            end = source.find("}", at)
            digits = source[at + 3 : max(end, at + 3)].strip(" \t")
            allowed, base = ("[0-9a-fA-F]+", 16) if char == "x" else ("[0-7]+", 8)
            if end < 0 or not re.fullmatch(allowed, digits):
                self._fail(rf"non-{'hex' if base == 16 else 'octal'} character in \{char}{{}}", at + 3)
            if int(digits[-9:], base) > 0xFF or len(digits.lstrip("0")) > 3:
                self._fail(_CODE_TOO_LARGE, end)
            return int(digits, base), end + 1
        if char == "x":
            found = re.compile("[0-9a-fA-F]{0,2}").match(source, at + 2)
            digits = found.group() if found else ""
            return int(digits or "0", 16), at + 2 + len(digits)
        if char.isascii() and char.isalnum():
            self._fail("unrecognized character follows \\", at + 2)
        return ord(char), at + 2

    # --- classes -------------------------------------------------------------------------------------------

    def _class(self) -> None:
        source, at = self._source, self._at + 1
        if re.compile(r"\[([:.=])[^\]]*\1\]").match(source, self._at):
            self._fail("POSIX named classes are supported only within a class", len(source))
        negated = source.startswith("^", at)
        at += negated
        members: list[tuple[int, int]] = []
        first = self._at + 1 + negated  # a bracket here does not end the class
        while at == first or not source.startswith("]", at):
            if source.startswith("\\E", at):
                at += 2
                first += 2 * (first == at - 2)
                continue
            if source.startswith("\\Q", at):
                end = source.find("\\E", at)
                quoted = source[at + 2 :] if end < 0 else source[at + 2 : end]
                members += [(ord(char), ord(char)) for char in quoted]
                at = len(source) if end < 0 else end + 2
                continue
            ranges, end = self._member(at)
            if re.compile(r"-[^\]]", re.DOTALL).match(source, end):
                if ranges[0][0] != ranges[-1][1]:
                    self._fail("invalid range in character class", end + 1)
                upper, end = self._member(end + 1)
                if upper[0][0] != upper[-1][1]:
                    self._fail("invalid range in character class", end)
                if upper[0][0] < ranges[0][0]:
                    self._fail("range out of order in character class", end)
                ranges = ((ranges[0][0], upper[0][0]),)
            members += ranges
            at = end
        self._put(f"[{'^' * negated}{_spelled(members)}]", at + 1 - self._at)

    def _member(self, at: int) -> tuple[Sequence[tuple[int, int]], int]:
        """What is at this place of a class, and where it ends."""
        source = self._source
        if at >= len(source):
            self._fail("missing terminating ] for character class", len(source))
        char = source[at]
        if char == "[" and (found := re.compile(r"\[([:.=])(\^?)([^\]]*?)\1\]").match(source, at)):
            kind, negated, name = found.groups()
            if kind != ":":
                self._fail("POSIX collating elements are not supported", at)
            if name not in _POSIX:
                self._fail("unknown POSIX class name", found.end())
            return _complement(_POSIX[name]) if negated else _POSIX[name], found.end()
        if char != "\\":
            return ((ord(char), ord(char)),), at + 1
        if at + 1 == len(source):
            self._fail("\\ at end of pattern", len(source))
        escaped = source[at + 1]
        if escaped in _CLASSES:
            return _CLASSES[escaped], at + 2
        if escaped in "pPNRX":
            self._at = at
            self._refuse(2)
        if escaped == "b":
            code, end = 0x08, at + 2
        elif octal := re.compile("[1-7][0-7]{0,2}").match(source, at + 1):
            code, end = int(octal.group(), 8) & 0xFF, octal.end()
        elif escaped in "89":
            code, end = ord(escaped), at + 2
        else:
            code, end = self._character(at)
        return ((code, code),), end

    # --- groups --------------------------------------------------------------------------------------------

    def _open(self) -> None:
        source, at = self._source, self._at
        if source.startswith("(*", at) and re.compile(r"\(\*[A-Za-z:]").match(source, at):
            self._verb()
        elif source.startswith("(?#", at):
            end = source.find(")", at)
            if end < 0:
                self._fail("missing ) after (?# comment", len(source))
            self._at = end + 1
        elif not source.startswith("(?", at):
            self._groups += 1
            self._push("(", 1)
        elif found := _NAMED_GROUP.match(source, at):
            name = found.group(1) or found.group(2)
            if name in self._names:
                self._fail("two named subpatterns have the same name (PCRE2_DUPNAMES not set)", found.end())
            self._names.add(name)
            self._groups += 1
            self._push(f"(?P<{name}>", found.end() - at)
        elif found := re.compile(rf"\(\?P=({_NAME})\)").match(source, at):
            self._check_name(found.group(1), found.start(1))
            self._put(found.group(), found.end() - at)
        elif found := re.compile(r"\(\?(?:[:=!>]|<[=!])").match(source, at):
            self._push(found.group(), found.end() - at)
        elif found := re.compile(r"\(\?\(([0-9]{1,3})\)").match(source, at):
            self._check_group(int(found.group(1)), found.end() - 1)
            self._push(found.group(), found.end() - at)
        elif found := _OPTIONS.match(source, at):
            self._options(found)
        elif re.compile(r"\(\?(?:[|R&+\-0-9(^imsxnJUarDSWPT]|P>|<)").match(source, at):
            self._refuse(3)
        elif at + 2 == len(source):
            self._fail("missing closing parenthesis", len(source))
        else:
            self._fail("unrecognized character after (? or (?-", at + 3)

    def _verb(self) -> None:
        for verb in ("(*FAIL)", "(*F)"):
            if self._source.startswith(verb, self._at):
                self._put("(?!)", len(verb))
                return
        end = self._source.find(")", self._at)
        self._refuse(end + 1 - self._at if end > 0 else 2)

    def _push(self, written: str, read: int) -> None:
        if len(self._stack) > _MAX_DEPTH:
            self._fail(f"parentheses are too deeply nested (more than {_MAX_DEPTH})", self._at)
        behind = self._at if written in {"(?<=", "(?<!"} else self._stack[-1].behind
        self._stack.append(_Group(self._extended, behind))
        self._put(written, read, repeatable=False)

    def _close(self) -> None:
        if len(self._stack) == 1:
            self._fail("unmatched closing parenthesis", self._at + 1)
        group = self._stack.pop()
        self._extended = group.extended
        self._put(")" * len(group.scopes) + ")", 1, size=group.size)

    def _options(self, found: re.Match[str]) -> None:
        """`(?i)` holds from here to the end of the group, also in later alternatives; `(?i:…)` in its own group."""
        reset, on, off, end = found.groups()
        off = "imsx" if reset else off or ""
        length = found.end() - found.start()
        extended = (self._extended and "x" not in off) or "x" in on
        ours = "".join(flag for flag in "ims" if flag in on)
        theirs = "".join(flag for flag in "ims" if flag in off and flag not in on)
        scope = f"(?{ours}{'-' * bool(theirs)}{theirs}:"
        if end == ":":
            self._push(scope, length)
        elif ours or theirs:
            self._stack[-1].scopes.append(scope)
            self._put(scope, length, repeatable=False)
        else:
            self._at += length
        self._extended = extended


def _literal(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{code:02x}"


def _spelled(ranges: Iterable[tuple[int, int]]) -> str:
    """Members of a class for `regex`; none of them has a special meaning there."""
    return "".join(f"\\x{low:02x}-\\x{high:02x}" if low < high else f"\\x{low:02x}" for low, high in ranges)
