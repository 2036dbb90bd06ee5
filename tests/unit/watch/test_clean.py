"""What is told of others' texts is clean, on one line and not too long, however long they were."""

import re
import time

import pytest

from redrive.letters.redact import Redactor
from redrive.watch.clean import LONGEST, LONGEST_STACK, Clean

SECRET = "hunter2-Xy9"


@pytest.mark.parametrize("place", range(LONGEST - 30, LONGEST + 5))
def test_a_secret_at_the_cut_is_not_told_in_half(place: int) -> None:
    text = Clean().line("x " * (place // 2) + f"password={SECRET} and more " + "y " * 2_000)
    assert len(text) <= LONGEST
    assert SECRET[:4] not in text


@pytest.mark.parametrize("length", [10_000, 49_000, 60_000, 1_000_000])
def test_a_key_that_is_longer_than_what_is_searched_is_not_told(length: int) -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEow" * (length // 6) + "\n-----END RSA PRIVATE KEY-----"
    error = ValueError(f"cannot read {key} of the shop")
    clean = Clean()
    for told in (clean.line(str(error)), clean.error(error), clean.stack(error)):
        assert "MIIEow" not in told


def test_a_megabyte_of_text_is_told_quickly_enough_not_to_be_noticed() -> None:
    clean, text = Clean(), "at 10.0.0.1 order 4711 failed, " * 40_000
    began = time.process_time()
    assert len(clean.line(text)) == LONGEST
    assert time.process_time() - began < 5, "seconds; it takes milliseconds, and grows with nothing"


def deeper(depth: int) -> None:
    if depth:
        deeper(depth - 1)
    elif depth == 0:
        raise ValueError("x" * 60_000 + f" password={SECRET}")


def test_of_a_long_traceback_the_end_is_kept() -> None:
    with pytest.raises(ValueError, match="password") as caught:
        deeper(5)
    stack = Clean().stack(caught.value)
    assert len(stack) == LONGEST_STACK + 1
    assert stack.endswith("password=[REDACTED:password]\n")


def test_an_own_redactor_is_asked() -> None:
    clean = Clean(Redactor(terms=("nightingale",)))
    assert clean.line("project Nightingale failed") == "project [REDACTED:term] failed"
    assert clean.id("nightingale") == "[REDACTED:term]"


def test_a_uuid_is_told_as_it_is_whatever_digits_it_has() -> None:
    uuid = "41111111-1111-1111-1111-111111111111"
    assert Clean().id(uuid) == uuid
    assert re.fullmatch(r"a\\nb", Clean().id("a\nb"))


def test_a_traceback_beyond_all_measure_is_left_out() -> None:
    with pytest.raises(ValueError, match="x") as caught:
        raise ValueError("x" * 100_001)
    assert Clean().stack(caught.value) == ""
    assert len(Clean().error(caught.value)) == LONGEST
