"""Names of queues as labels of the broker's metrics."""

import pytest

from redrive.broker.management.metrics import _escaped


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("orders", "orders"),
        ('a"b\\c\nd', r"a\"b\\c\nd"),
        ("a\x1b[2Jb", r"a\\x1b[2Jb"),
        ("a\u202eb", r"a\\u202eb"),
        ("注文", "注文"),
    ],
)
def test_label_is_escaped_for_the_text_format_and_for_a_terminal(name: str, label: str) -> None:
    assert _escaped(name) == label
