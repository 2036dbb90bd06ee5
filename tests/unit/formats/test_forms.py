"""Every form reads what its writer documents, from text and bytes alike, and refuses the rest with a ValueError."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st

from redrive.formats.forms import READERS
from redrive.letters import Headers
from redrive.letters.convention import FORMS

AT = datetime(2026, 2, 11, 11, 0, 0, 250000, tzinfo=UTC)
MS = 1770807600250
PYTHON_TYPES = {"text": str, "number": int, "time": datetime}


def test_every_form_that_can_be_named_can_be_read() -> None:
    assert READERS.keys() == FORMS.keys()


@pytest.mark.parametrize(
    ("form", "value", "means"),
    [
        ("text", "Größe", "Größe"),
        ("text", "Größe".encode(), "Größe"),
        ("text", "Größe".encode()[:3], "Gr"),
        ("name", b"a\xff", "a\udcff"),
        ("address", "kafka://topic/orders", "orders"),
        ("java-type", "shop.Closed: order: 17", "shop.Closed"),
        ("java-type", b"shop.Orders$Closed", "shop.Orders$Closed"),
        ("java-type", "Größe", "Größe"),
        ("count", b"17", 17),
        ("count", 3.0, 3),
        ("place", "0", 0),
        ("place", b"-1", None),
        ("place", -1, None),
        ("int-be", b"\x05", 5),
        ("int-be", b"\x01\x9c", 412),
        ("int-be", 5, 5),
        ("next-be", b"\x00\x00\x00\x03", 2),
        ("int32-be", b"\x00\x00\x01\x00", 256),
        ("int32-be", b"\xff\xff\xff\xff", None),
        ("int64-be", b"\x7f" + b"\xff" * 7, 2**63 - 1),
        ("time", "2026-02-11T12:00:00.25+01:00", AT),
        ("time", AT, AT),
        ("unix-s", b"1770807600", AT.replace(microsecond=0)),
        ("unix-ms", MS, AT),
        ("unix-ms", str(MS).encode(), AT),
        ("unix-ms-be", MS.to_bytes(8, "big"), AT),
        ("unix-ms-be", MS.to_bytes(6, "big"), AT),
        ("nservicebus-time", b"2026-02-11 11:00:00:250000 Z", AT),
    ],
)
def test_a_value_in_its_form_means(form: str, value: object, means: object) -> None:
    assert READERS[form](value) == means


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ("text", b"\xff"),
        ("text", 7),
        ("queue", ""),
        ("java-type", "not a class: x"),
        ("java-type", ": x"),
        ("java-type", ""),
        ("count", "-1"),
        ("count", True),
        ("count", "9" * 5000),
        ("count", b"\x00\x00\x00\x05"),
        ("place", "-2"),
        ("place", ""),
        ("int-be", b""),
        ("int-be", b"\x00" * 9),
        ("int-be", b"\xff"),
        ("next-be", b"\x00"),
        ("int32-be", b"7"),
        ("int32-be", b"\x00" * 8),
        ("int32-be", b"\xff\xff\xff\xfe"),
        ("int64-be", b"\x00" * 4),
        ("time", "soon"),
        ("time", datetime.min.replace(tzinfo=UTC).isoformat() + "x"),
        ("unix-s", 2**62),
        ("unix-ms", 2**63),
        ("unix-ms-be", b"\x7f" + b"\xff" * 7),
        ("nservicebus-time", "2026-02-11T11:00:00Z"),
    ],
)
def test_a_value_in_another_form_is_refused(form: str, value: object) -> None:
    with pytest.raises(ValueError):
        READERS[form](value)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=12) | st.decimals()
    | st.uuids() | st.datetimes(timezones=st.just(UTC)) | st.integers().map(str)
    | st.integers().map(lambda number: str(number).encode()),
    lambda inner: st.lists(inner, max_size=2).map(tuple) | st.dictionaries(st.text(), inner, max_size=2).map(Headers),
    max_leaves=4,
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@given(value=ANYTHING)
def test_any_value_gives_what_the_form_says_or_a_value_error(form: str, value: Any) -> None:
    try:
        means = READERS[form](value)
    except ValueError:
        return
    assert means is None or type(means) is PYTHON_TYPES[FORMS[form][0]]
