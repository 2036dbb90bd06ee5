"""Which parts of an error text must not leave the process, and what stands in their place?

The rule (D4): a secret goes, its surroundings stay. `password=hunter2 rejected by db-1` becomes
`password=[REDACTED:password] rejected by db-1`, so that the text still explains the failure. In the mode
`"whole"` any finding replaces the entire text, in the words of seed 003.

A marker is a wall: nothing is searched in it or across it. Cleaning repeats until nothing more is found,
hence cleaning twice is the same as cleaning once.

Most text is harmless, and most lines of a stack come again in the next one. So rows are tried only where a line
has something they need, and lines that have nothing for any of them are remembered, up to a bound.

This module does not know what a secret looks like (`sensitive.py` does), where the text came from or where it
goes, and it never sees payloads.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from typing import Literal, NamedTuple, get_args

from redrive.errors import SettingsError
from redrive.letters.sensitive import KINDS, RULES, SEED_RULES, Rule

Mode = Literal["parts", "whole"]
WHOLE = "[REDACTED - potentially sensitive data]"

# Where no line of a text has this, no row that needs digits finds anything. It stands on one line, and so do those.
_MANY_DIGITS = re.compile(r"\d(?:[ .\-()\u00a0]{0,2}\d){8}")
_KIND = re.compile(r"[a-z][a-z0-9_\-]{0,39}")
_DIGITS = "9 digits"  # stands for `_MANY_DIGITS` among the stems
_LINES = 4096  # harmless lines that are remembered
_LONGEST_LINE = 400  # of those
_VERSION = 1  # to be raised when a check or the search itself comes to hide more
_PASSES = 8  # real text settles after two; text made to need more is given up as a whole


class Found(NamedTuple):
    """One secret: its kind and where it stands in the text."""

    kind: str
    start: int
    end: int


class _Ready(NamedTuple):
    """A rule with its pattern compiled. The stem "" is in every text, and `_DIGITS` where there are many digits."""

    kind: str
    stems: tuple[str, ...]
    pattern: re.Pattern[str]
    group: int | str = "s"
    check: Callable[[re.Match[str]], bool] | None = None
    yields: bool = False


@cache
def _ready(rule: Rule) -> _Ready:
    pattern = re.compile(rule.pattern, re.IGNORECASE)
    return _Ready(rule.kind, rule.stems or (_DIGITS,), pattern, "s", rule.check, rule.yields)


@dataclass(frozen=True, slots=True)
class Redactor:
    """What is to be hidden, decided once; `clean` never raises, whatever the text.

    `extra` maps a kind to a regular expression: its group `secret` is replaced, or the whole match without
    one. `terms` are words (any case, whole words only). `keep` are literals that stay even where a rule
    would hide them. `off` names kinds that are not looked for.
    """

    mode: Mode = "parts"
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)
    terms: Sequence[str] = field(default=(), hash=False)
    keep: Sequence[str] = field(default=(), hash=False)
    off: Sequence[str] = field(default=(), hash=False)
    # Redactors of the same name hide the same: what one of them has cleaned, another need not look at.
    name: str = field(init=False, repr=False, compare=False)
    _rules: tuple[_Ready, ...] = field(init=False, repr=False, compare=False)
    _stems: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _exact_stems: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _always: frozenset[str] = field(init=False, repr=False, compare=False)
    _harmless: set[str] = field(init=False, repr=False, compare=False)
    _walls: re.Pattern[str] = field(init=False, repr=False, compare=False)
    _kept: re.Pattern[str] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise SettingsError(f"redaction mode {self.mode!r} is unknown; use 'parts' or 'whole'")
        for name in self.off:
            if name not in KINDS:
                raise SettingsError(f"redaction kind {name!r} is unknown; use one of {', '.join(KINDS)}")
        built_in = RULES + (SEED_RULES if self.mode == "whole" else ())
        rules = [_ready(rule) for rule in built_in if rule.kind not in self.off]
        rules += [_extra(kind, pattern) for kind, pattern in self.extra.items()]
        if self.terms:
            words = rf"(?<!\w)(?:{_literals('terms', self.terms)})(?!\w)"
            rules.append(_Ready("term", ("",), re.compile(words, re.IGNORECASE), 0))
        kinds = "|".join(sorted({re.escape(rule.kind) for rule in rules}))
        keep = re.compile(_literals("keep", self.keep)) if self.keep else None
        looked_for = [(rule.kind, rule.stems, rule.pattern.pattern) for rule in rules]
        told = repr((_VERSION, self.mode, looked_for, keep and keep.pattern)).encode(
            "utf-8", "backslashreplace"
        )
        object.__setattr__(self, "name", blake2b(told, digest_size=6).hexdigest())
        object.__setattr__(self, "_rules", tuple(rules))
        stems = {stem for rule in rules for stem in rule.stems}
        always = frozenset(stems & {""})
        stems -= {"", _DIGITS}
        object.__setattr__(self, "_stems", tuple(sorted(stem for stem in stems if stem == stem.lower())))
        object.__setattr__(
            self, "_exact_stems", tuple(sorted(stem for stem in stems if stem != stem.lower()))
        )
        object.__setattr__(self, "_always", always)
        object.__setattr__(self, "_harmless", set())
        object.__setattr__(self, "_walls", re.compile(rf"\[REDACTED:(?:{kinds})\]|{re.escape(WHOLE)}"))
        object.__setattr__(self, "_kept", keep)

    def find(self, text: str) -> list[Found]:
        """Every secret in the text, in order, none overlapping another."""
        present, numbers = set(self._always), []
        at = 0
        for line in text.split("\n"):
            if line not in self._harmless and (stems := self._look(line)):
                present |= stems
                if _DIGITS in stems:
                    numbers.append((at, at + len(line)))
            at += len(line) + 1
        if not present:
            return []
        rules = [rule for rule in self._rules if not present.isdisjoint(rule.stems)]
        kept = (
            _Spans([Found("", *match.span()) for match in self._kept.finditer(text)]) if self._kept else None
        )
        found: list[Found] = []
        at = 0
        for wall in (*self._walls.finditer(text), None) if "[REDACTED" in text else (None,):
            end = wall.start() if wall else len(text)
            if at < end:
                found += _search(rules, text, (at, end), numbers, kept)
            at = wall.end() if wall else end
        return found

    def _look(self, line: str) -> set[str]:
        """What this line has that a rule needs. One that has nothing is remembered; one that has may be secret."""
        lower = line.lower()
        present = {stem for stem in self._stems if stem in lower}
        present.update(stem for stem in self._exact_stems if stem in line)
        if _MANY_DIGITS.search(line):
            present.add(_DIGITS)
        if not present and len(line) <= _LONGEST_LINE:
            if len(self._harmless) >= _LINES:
                self._harmless.clear()
            self._harmless.add(line)
        return present

    def clean(self, text: str) -> str:
        """The text without its secrets; the same text where there is none."""
        for _ in range(_PASSES):
            if not (found := self.find(text)):
                return text
            if self.mode == "whole":
                return WHOLE
            pieces: list[str] = []
            at = 0
            for kind, start, end in found:
                pieces += (text[at:start], f"[REDACTED:{kind}]")
                at = end
            text = "".join((*pieces, text[at:]))
        return WHOLE if self.find(text) else text

    def clean_error(self, error_type: str, text: str) -> str:
        """The message of an error; where all of it had to go, its type still says what happened."""
        cleaned = self.clean(text)
        return f"{error_type}: {WHOLE}" if cleaned == WHOLE != text else cleaned


def _search(
    rules: list[_Ready],
    text: str,
    part: tuple[int, int],
    numbers: list[tuple[int, int]],
    kept: "_Spans | None",
) -> list[Found]:
    """What the rules find in a part of the text; `numbers` are the lines with many digits."""
    found: list[Found] = []
    for rule in rules:
        others = _Spans(found) if rule.yields else None
        places = _common(numbers, part) if _DIGITS in rule.stems else (part,)
        for match in (match for place in places for match in rule.pattern.finditer(text, *place)):
            span = match.span(rule.group)
            if span[0] >= span[1] or (rule.check and not rule.check(match)):
                continue
            if not (kept and kept.around(*span)) and not (others and others.touching(*span)):
                found.append(Found(rule.kind, *span))
    return _merged(found)


def _common(spans: list[tuple[int, int]], part: tuple[int, int]) -> list[tuple[int, int]]:
    cut = ((max(start, part[0]), min(end, part[1])) for start, end in spans)
    return [(start, end) for start, end in cut if start < end]


def _merged(found: list[Found]) -> list[Found]:
    """One finding where several overlap, under the name of the rule that stands first in the table."""
    merged: list[tuple[int, Found]] = []
    for rank, this in sorted(enumerate(found), key=lambda pair: pair[1].start):
        if merged and this.start < merged[-1][1].end:
            first, last = merged[-1]
            kind = this.kind if rank < first else last.kind
            merged[-1] = min(rank, first), Found(kind, last.start, max(this.end, last.end))
        else:
            merged.append((rank, this))
    return [this for _, this in merged]


class _Spans:
    """Spans that can be asked, quickly, what they cover."""

    def __init__(self, spans: list[Found]) -> None:
        self._spans = _merged(spans)
        self._starts = [span.start for span in self._spans]

    def around(self, start: int, end: int) -> bool:
        at = bisect_right(self._starts, start)
        return at > 0 and self._spans[at - 1].end >= end

    def touching(self, start: int, end: int) -> bool:
        at = bisect_left(self._starts, end)
        return at > 0 and self._spans[at - 1].end > start


def _literals(option: str, words: Sequence[str]) -> str:
    if isinstance(words, str) or not all(word.strip() for word in words):
        raise SettingsError(f"redaction {option} must be a list of words, none of them empty")
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


def _extra(kind: str, pattern: str) -> _Ready:
    if not _KIND.fullmatch(kind):
        raise SettingsError(f"redaction kind {kind!r} must be lower-case letters, digits, '-' and '_'")
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise SettingsError(f"redaction pattern for '{kind}' is not a regular expression: {error}") from None
    if any(match.end() == match.start() for probe in ("", "a0 -") for match in compiled.finditer(probe)):
        raise SettingsError(f"redaction pattern for '{kind}' matches the empty text; make it match something")
    return _Ready(kind, ("",), compiled, "secret" if "secret" in compiled.groupindex else 0)
