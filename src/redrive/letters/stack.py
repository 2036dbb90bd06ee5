"""Where did an error come from, as text that a person knows how to read?

The same text as Python's own traceback, its causes included, but without the marks under the source lines and at a
fraction of the cost: in a flood of failures the same frames come again and again, so each is written once and kept.

`stack_parts` gives the pieces apart: frames, which repeat from one failure to the next, and the errors' own words.
"""

import linecache
import traceback
from functools import lru_cache
from itertools import groupby
from types import CodeType, TracebackType
from typing import Final

_CAUSE: Final = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT: Final = "\nDuring handling of the above exception, another exception occurred:\n\n"
_MOST_LINKS: Final = 32  # of one chain of causes
_REPEATED: Final = 3  # as often is a frame shown that calls itself


def stack_of(error: BaseException) -> str:
    """The error's traceback as text, its causes included."""
    return "".join(stack_parts(error))


def stack_parts(error: BaseException) -> list[str]:
    """The same in pieces: frames of one error, then its words, then the next."""
    parts: list[str] = []
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(seen) < _MOST_LINKS:
        seen.add(id(link))
        if isinstance(
            link, BaseExceptionGroup | SyntaxError
        ):  # rare, and Python draws them in a way of its own
            return ["".join(traceback.format_exception(link)), *parts]
        before: BaseException | None = link.__cause__
        joint = _CAUSE
        if before is None and not link.__suppress_context__:
            before, joint = link.__context__, _CONTEXT
        has_before = before is not None and id(before) not in seen and len(seen) < _MOST_LINKS
        parts = [*([joint] if has_before else []), _frames(link.__traceback__), _words(link), *parts]
        link = before
    return parts


def _frames(trace: TracebackType | None) -> str:
    """The frames of one error. Known by their code and lines, which are looked up all at once."""
    if trace is None:
        return ""
    codes: list[CodeType] = []
    numbers: list[int] = []
    while trace is not None:
        codes.append(trace.tb_frame.f_code)
        numbers.append(trace.tb_lineno)
        trace = trace.tb_next
    if len(codes) > _DEEPEST_KEPT:
        return _written(list(map(_frame, codes, numbers)))
    # By identity: the hash of a code object is made of all it consists of.
    known = _STACKS.get(key := (*map(id, codes), *numbers))
    if known is not None:
        return known[1]
    text = _written(list(map(_frame, codes, numbers)))
    if len(_STACKS) >= _MOST_STACKS:
        _STACKS.clear()
    _STACKS[key] = (codes, text)  # as long as it is kept, no other code has its id
    return text


_STACKS: Final[dict[tuple[int, ...], tuple[list[CodeType], str]]] = {}
_MOST_STACKS: Final = 512
_DEEPEST_KEPT: Final = 50  # frames; a recursion that ran away is different each time


def _written(lines: list[str]) -> str:
    text = ["Traceback (most recent call last):\n"]
    if len(lines) <= _REPEATED:
        return "".join(text + lines)
    for line, repeated in groupby(lines):
        count = sum(1 for _ in repeated)
        text.append(line * min(count, _REPEATED))
        if count > _REPEATED:
            more = count - _REPEATED
            text.append(f"  [Previous line repeated {more} more time{'s' if more > 1 else ''}]\n")
    return "".join(text)


@lru_cache(4096)
def _frame(code: CodeType, number: int) -> str:
    source = linecache.getline(code.co_filename, number).strip()
    line = f'  File "{code.co_filename}", line {number}, in {code.co_name}\n'
    return f"{line}    {source}\n" if source else line


def _words(error: BaseException) -> str:
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ in ("builtins", "__main__")
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  an error that cannot even be told is still an error
        text = "<exception str() failed>"
    lines = [f"{name}: {text}\n" if text else f"{name}\n"]
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, list):
        lines += [f"{note}\n" for note in notes if isinstance(note, str)]
    return "".join(lines)
