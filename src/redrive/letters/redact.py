"""Which parts of an error text must not leave the process, and what stands in their place?

The rule: a secret goes, its surroundings stay. `password=hunter2 rejected by db-1` becomes
`password=[REDACTED:password] rejected by db-1`, so that the text still explains the failure. In the mode
`"text"` any finding replaces the entire text.

A marker is a wall: nothing is searched in it or across it. Cleaning repeats until nothing more is found,
hence cleaning twice is the same as cleaning once.

The work is bounded: of a long text the first 65,536 characters are searched and the rest is dropped. The last
characters of those are context only, so that a secret that crosses the cut is recognised as a whole, and one whose end
was cut off is hidden to the end. Full-width letters are searched as plain ones and invisible characters are skipped,
because a reader and a log viewer treat them so.

Most text is harmless, and most lines come again with other numbers. So rows are tried only where a line has something
they need (a stem, which is looked for with every digit read as 0), and only around it; lines that have nothing for any
row are remembered with their digits as 0, up to a bound.

This module does not know what a secret looks like (`sensitive.py` does), where the text came from or where it
goes, and it never sees payloads.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from typing import Literal, NamedTuple, get_args

from redrive.errors import SettingsError
from redrive.letters.sensitive import CUT, KINDS, RULES, SEED_RULES, Rule

Mode = Literal["secret", "text"]
_STORED_MODES = {"secret": "parts", "text": "whole"}  # in the name of a redactor, which letters keep
WHOLE = "[REDACTED - potentially sensitive data]"
TRUNCATED = "[TRUNCATED after 64 kB]"
MAX_TEXT_CHARS = 65_536  # searched; what follows is dropped

_CONTEXT_CHARS = 1024  # at the end of a text that is cut: searched, then dropped
_MAX_MARKER_CHARS = 64
# Where no line of a text has this, no row that needs digits finds anything. It stands on one line, and so do those.
_MANY_DIGITS = re.compile(r"\d(?:[ .\-()\u00a0]{0,2}\d){8}")
# What a line must have besides the stem, by the name that `Rule.needs` gives it.
_RUN = re.compile(r"[A-Za-z0-9_\-]{14,}+")
_HEXADECIMAL = re.compile(r"[0-9A-Fa-f\-]+")  # a UUID or a hash, and not what such a run is looked for
_DIGIT = re.compile(r"\d")
_NEEDS = ("digits", "run", "flag", "path", "other letters")
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
# Soft hyphen, zero-width spaces and joiners, direction marks, byte order mark, variation selectors, tags.
_INVISIBLE = (
    *(0xAD, 0x34F, 0x61C, 0x180E, 0xFEFF),
    *range(0x200B, 0x2010),
    *range(0x202A, 0x202F),
    *range(0x2060, 0x2070),
    *range(0xFE00, 0xFE10),
    *range(0xE0000, 0xE0080),
)
_FOLDED = {
    0x3000: " ",
    **{code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},  # full-width ASCII
    **dict.fromkeys(_INVISIBLE),
}
_FOLDABLE = re.compile(f"[{''.join(map(chr, _FOLDED))}]")
_SKIPPED = frozenset(map(chr, _INVISIBLE))
_KIND = re.compile(r"[a-z][a-z0-9_\-]{0,39}")
_DIGITS = "9 digits"  # stands for `_MANY_DIGITS` among the stems
_LINES = 4096  # harmless lines that are remembered
_LONGEST_LINE = 400  # of those
_VERSION = 2  # to be raised when a check or the search itself comes to hide more
_PASSES = 8  # real text settles after two; text made to need more is given up as a whole


def zeroed(text: str) -> str:
    """The text with 0 for each digit, so that texts that differ in numbers only are the same."""
    return text.encode().translate(_ZEROS).decode() if text.isascii() else text


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
    needs: str = ""
    also: tuple[str, ...] = ()
    reach: int | None = None


@cache
def _ready(rule: Rule) -> _Ready:
    pattern = re.compile(rule.pattern, re.IGNORECASE)
    stems = tuple(dict.fromkeys(map(zeroed, rule.stems))) or (_DIGITS,)
    return _Ready(rule.kind, stems, pattern, "s", rule.check, rule.yields, rule.needs, rule.also, rule.reach)


def check_redaction(
    mode: str,
    patterns: Mapping[str, str],
    terms: Sequence[str],
    allow: Sequence[str],
    disabled: Sequence[str],
) -> None:
    """A `SettingsError` if no `Redactor` has these options. Does not compile the built-in patterns (0.1 s)."""
    if mode not in get_args(Mode):
        raise SettingsError(f"redaction mode {mode!r} is unknown; use 'secret' or 'text'")
    for name in disabled:
        if name not in KINDS:
            raise SettingsError(f"redaction kind {name!r} is unknown; use one of {', '.join(KINDS)}")
    for kind, pattern in patterns.items():
        _extra(kind, pattern)
    for name, words in (("terms", terms), ("allow", allow)):
        if words:
            _literals(name, words)


@dataclass(frozen=True, slots=True)
class Redactor:
    """What is to be hidden, decided once; `clean` never raises, whatever the text.

    `patterns` maps a kind to a regular expression: its group `secret` is replaced, or the whole match without
    one. `terms` are words (any case, whole words only). `allow` are literals that stay even where a rule
    would redact them. `disabled` names kinds that are not searched for.
    """

    mode: Mode = "secret"
    patterns: Mapping[str, str] = field(default_factory=dict, hash=False)
    terms: Sequence[str] = field(default=(), hash=False)
    allow: Sequence[str] = field(default=(), hash=False)
    disabled: Sequence[str] = field(default=(), hash=False)
    # Redactors of the same name hide the same: what one of them has cleaned, another need not look at.
    name: str = field(init=False, repr=False, compare=False)
    _rules: tuple[_Ready, ...] = field(init=False, repr=False, compare=False)
    _by_stem: Mapping[str, Sequence[int]] = field(init=False, repr=False, compare=False)  # places in `_rules`
    _stems: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _longer_stems: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)
    _gated_stems: Mapping[str, "_Gated"] = field(init=False, repr=False, compare=False)
    _always: frozenset[str] = field(init=False, repr=False, compare=False)
    _harmless: set[str] = field(init=False, repr=False, compare=False)
    _walls: re.Pattern[str] = field(init=False, repr=False, compare=False)
    _kept: re.Pattern[str] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_redaction(self.mode, self.patterns, self.terms, self.allow, self.disabled)
        built_in = RULES + (SEED_RULES if self.mode == "text" else ())
        rules = [_ready(rule) for rule in built_in if rule.kind not in self.disabled]
        rules += [_extra(kind, pattern) for kind, pattern in self.patterns.items()]
        if self.terms:
            words = rf"(?<!\w)(?:{_literals('terms', self.terms)})(?!\w)"
            rules.append(_Ready("term", ("",), re.compile(words, re.IGNORECASE), 0))
        kinds = "|".join(sorted({re.escape(rule.kind) for rule in rules}))
        keep = re.compile(_literals("allow", self.allow)) if self.allow else None
        looked_for = [(rule.kind, rule.stems, rule.pattern.pattern) for rule in rules]
        told = repr((_VERSION, _STORED_MODES[self.mode], looked_for, keep and keep.pattern)).encode(
            "utf-8", "backslashreplace"
        )
        object.__setattr__(self, "name", blake2b(told, digest_size=6).hexdigest())
        object.__setattr__(self, "_rules", tuple(rules))
        by_stem: dict[str, list[int]] = {}
        for at, rule in enumerate(rules):
            for stem in rule.stems:
                by_stem.setdefault(stem, []).append(at)
        object.__setattr__(self, "_by_stem", by_stem)
        stems = {stem for rule in rules if not rule.needs for stem in rule.stems}
        shortest, longer = _by_shortest(stems - {"", _DIGITS})
        object.__setattr__(self, "_stems", shortest)
        object.__setattr__(self, "_longer_stems", longer)
        object.__setattr__(self, "_gated_stems", {name: _gated(rules, name, stems) for name in _NEEDS})
        object.__setattr__(self, "_always", frozenset(stems & {""}))
        object.__setattr__(self, "_harmless", set())
        walls = rf"\[REDACTED:(?:{kinds})\]|{re.escape(WHOLE)}|{re.escape(TRUNCATED)}"
        object.__setattr__(self, "_walls", re.compile(walls))
        object.__setattr__(self, "_kept", keep)

    def find(self, text: str) -> list[Found]:
        """Every secret in the text's first 65,536 characters, in order, none overlapping another."""
        if len(text) <= MAX_TEXT_CHARS and text.isascii():
            return self._find(text)
        if len(text) > MAX_TEXT_CHARS:
            found = self._find_folded(text[:MAX_TEXT_CHARS] + CUT)
            return [Found(kind, start, min(end, MAX_TEXT_CHARS)) for kind, start, end in found]
        return self._find_folded(text)

    def _find_folded(self, text: str) -> list[Found]:
        if not _is_foldable(text):
            return self._find(text)
        positions = [at for at, char in enumerate(text) if char not in _SKIPPED]
        found = self._find(text.translate(_FOLDED))
        return [Found(kind, positions[start], positions[end - 1] + 1) for kind, start, end in found]

    def _find(self, text: str) -> list[Found]:
        present, numbers = set(self._always), []
        at = 0
        plain = zeroed(text)
        for line in plain.split("\n"):
            if line not in self._harmless and (stems := self._look(line)):
                present |= stems
                if _DIGITS in stems:
                    numbers.append((at, at + len(line)))
            at += len(line) + 1
        if not present:
            return []
        lower = plain.lower()
        rules = [
            rule
            for rule in map(
                self._rules.__getitem__, sorted({at for stem in present for at in self._by_stem[stem]})
            )
            if not rule.also or any(word in lower for word in rule.also)
        ]
        kept = (
            _Spans([Found("", *match.span()) for match in self._kept.finditer(text)]) if self._kept else None
        )
        found: list[Found] = []
        at = 0
        marked = "[REDACTED" in text or "[TRUNCATED" in text
        for wall in (*self._walls.finditer(text), None) if marked else (None,):
            end = wall.start() if wall else len(text)
            if at < end:
                found += _search(rules, text, lower, (at, end), numbers, kept)
            at = wall.end() if wall else end
        return found

    def _look(self, line: str) -> set[str]:
        """What this line has that a rule needs. One that has nothing is remembered; one that has may be secret."""
        lower = line.lower()
        present = {stem for stem in self._stems if stem in lower}
        if present:
            for stem in tuple(present):
                present.update([longer for longer in self._longer_stems.get(stem, ()) if longer in lower])
        gated = self._gated_stems
        if _DIGIT.search(line):
            present.update(gated["digits"].in_line(line, lower))
            if _MANY_DIGITS.search(line):
                present.add(_DIGITS)
        runs = _RUN.findall(line)
        if runs and not all(map(_HEXADECIMAL.fullmatch, runs)):
            present.update(gated["run"].in_line(line, lower))
        if " -" in line:
            present.update(gated["flag"].in_line(line, lower))
        if "/" in line:
            present.update(gated["path"].in_line(line, lower))
        if not line.isascii():
            present.update(gated["other letters"].in_line(line, lower))
        if not present and len(line) <= _LONGEST_LINE:
            if len(self._harmless) >= _LINES:
                self._harmless.clear()
            self._harmless.add(line)
        return present

    def clean(self, text: str) -> str:
        """The text without its secrets and without what follows 64 kB; the same text where there is nothing to do."""
        if len(text) <= _LONGEST_LINE and not self._always and zeroed(text) in self._harmless:
            return text  # one line that was met before
        for _ in range(_PASSES):
            found = self.find(text)
            if found and self.mode == "text":
                return WHOLE
            if len(text) > MAX_TEXT_CHARS:
                text = _replaced(text, found, _cut_position(text)) + TRUNCATED
            elif found:
                text = _replaced(text, found, len(text))
            else:
                return text
        return WHOLE if len(text) > MAX_TEXT_CHARS or self.find(text) else text

    def clean_error(self, error_type: str, text: str) -> str:
        """The message of an error; where all of it had to go, its type still says what happened."""
        cleaned = self.clean(text)
        return f"{error_type}: {WHOLE}" if cleaned == WHOLE != text else cleaned


def _replaced(text: str, found: Sequence[Found], end: int) -> str:
    """The text up to this position, a marker instead of each secret that begins before it."""
    pieces: list[str] = []
    at = 0
    for kind, start, stop in found:
        if start >= end:
            break
        pieces += (text[at:start], f"[REDACTED:{kind}]")
        at = stop
    return "".join((*pieces, text[at:end]))


def _cut_position(text: str) -> int:
    """Where a text that is too long is cut: not within a marker."""
    end = MAX_TEXT_CHARS - _CONTEXT_CHARS
    marker = text.rfind("[REDACTED", end - _MAX_MARKER_CHARS, end)
    return marker if marker >= 0 and "]" not in text[marker:end] else end


def _is_foldable(text: str) -> bool:
    """Whether a text has characters that are searched as others, or skipped."""
    if text.isascii():
        return False
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return bool(_FOLDABLE.search(text))
    return "\xad" in text


class _Gated(NamedTuple):
    """Stems that are looked for only in lines that have something else; `exact` ones are case-sensitive."""

    stems: tuple[str, ...]
    exact: tuple[str, ...]

    def in_line(self, line: str, lower: str) -> list[str]:
        found = [stem for stem in self.stems if stem in lower]
        return [*found, *(stem for stem in self.exact if stem in line)] if self.exact else found


def _gated(rules: Sequence[_Ready], needs: str, known: set[str]) -> _Gated:
    """The stems of all rules that need this; `known` are stems that are looked for anyway."""
    stems = sorted({stem for rule in rules if rule.needs == needs for stem in rule.stems} - known)
    exact = tuple(stem for stem in stems if stem != stem.lower())
    return _Gated(tuple(stem for stem in stems if stem not in exact), exact)


def _by_shortest(stems: set[str]) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """The stems that hold no other one, and for each of them those that hold it."""
    shortest: list[str] = []
    longer: dict[str, tuple[str, ...]] = {}
    for stem in sorted(stems, key=lambda stem: (len(stem), stem)):
        inner = next((short for short in shortest if short in stem), None)
        if inner is None:
            shortest.append(stem)
        else:
            longer[inner] = (*longer.get(inner, ()), stem)
    return tuple(shortest), longer


def _search(
    rules: list[_Ready],
    text: str,
    lower: str,
    part: tuple[int, int],
    numbers: list[tuple[int, int]],
    kept: "_Spans | None",
) -> list[Found]:
    """What the rules find in a part of the text; `numbers` are the lines with many digits."""
    found: list[Found] = []
    for rule in rules:
        others = _Spans(found) if rule.yields else None
        matches: Iterable[re.Match[str]]
        if _DIGITS in rule.stems:
            matches = (m for place in _common(numbers, part) for m in rule.pattern.finditer(text, *place))
        elif rule.reach is None or len(lower) != len(text):
            matches = rule.pattern.finditer(text, *part)
        else:
            matches = _near_stems(rule, rule.reach, text, lower, part)
        for match in matches:
            span = match.span(rule.group)
            if span[0] >= span[1] or (rule.check and not rule.check(match)):
                continue
            if not (kept and kept.around(*span)) and not (others and others.touching(*span)):
                found.append(Found(rule.kind, *span))
    return _merged(found)


def _near_stems(
    rule: _Ready, reach: int, text: str, lower: str, part: tuple[int, int]
) -> Iterator[re.Match[str]]:
    """What `finditer` gives, for a pattern that begins at most `reach` characters before one of its stems."""
    at, end = part
    places: list[int] = []
    for stem in rule.stems:
        place = lower.find(stem, at, end)
        while place >= 0:
            places.append(place)
            place = lower.find(stem, place + 1, end)
    if len(rule.stems) > 1:
        places.sort()
    for place in places:
        for start in range(max(at, place - reach), place + 1):
            if match := rule.pattern.match(text, start, end):
                yield match
                at = max(match.end(), start + 1)
                break
        else:
            at = max(at, place + 1)


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
    folded = {word.translate(_FOLDED) or word for word in words}
    return "|".join(re.escape(word) for word in sorted(folded, key=lambda word: (-len(word), word)))


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
