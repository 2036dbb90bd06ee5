"""How does an exception become a failure that may leave the process?

Classified, its text and its stack redacted: whoever makes a `Failure` of an exception makes it here.
"""

from datetime import datetime
from functools import lru_cache

from redrive.letters import Failure
from redrive.letters.redact import Redactor
from redrive.letters.stack import stack_parts
from redrive.rules.classify import Classification, Classifier


def failure_from_error(
    error: BaseException, *, at: datetime, classifier: Classifier, redactor: Redactor
) -> Failure:
    """The error as a value, clean."""
    return judged(error, at=at, classifier=classifier, redactor=redactor)[0]


def judged(
    error: BaseException, *, at: datetime, classifier: Classifier, redactor: Redactor
) -> tuple[Failure, Classification]:
    """The error as a value, clean, and what it was judged to be."""
    found = classifier.classify(error, at)
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  an error that cannot even be told is still an error
        text = "(the error has no text)"
    if not isinstance(error, Exception):  # SystemExit(3) says no more than "3"
        text = f"{name} was raised: {text}" if text else f"{name} was raised"
    failure = Failure(
        error_type=name,
        text=redactor.clean_error(name, text),
        at=at,
        kind=found.kind,
        retryable=found.retryable,
        rule=found.rule,
        stack="".join(_cleaned(redactor, part) for part in stack_parts(error)),
        retry_after=found.retry_after,
        redacted=redactor.name,
    )
    return failure, found


@lru_cache(1024)
def _cleaned(redactor: Redactor, text: str) -> str:
    """A part of a stack without its secrets; in a flood of failures, frames come again and again."""
    return redactor.clean(text)
