"""The table of permissions in the reference is the one that `redrive doctor` reads."""

import re
from pathlib import Path
from typing import get_args

from redrive.transports.base import Source
from redrive.transports.rabbitmq.rights import RIGHTS, Role

REFERENCE = Path(__file__).parents[4] / "docs/reference/transport-rabbitmq.md"


def rows() -> list[str]:
    roles: tuple[Role, ...] = get_args(Role)
    return [
        f"| {right.access} | {right.resource} | "
        + " | ".join("yes" if role in right.roles else "" for role in roles)
        + f" | {right.why} |"
        for right in RIGHTS
    ]


def test_reference_has_the_table_of_permissions() -> None:
    found = re.search(
        r"<!-- table: rights -->\n(.*?)\n<!-- end -->", REFERENCE.read_text(encoding="utf-8"), re.DOTALL
    )
    assert found
    assert found[1].splitlines()[2:] == [re.sub(r"\|  (?=\|)", "| ", row) for row in rows()]


def test_consumer_that_rejects_needs_no_dead_letter_exchange() -> None:
    needed = [
        right.resource for right in RIGHTS if right.is_needed(Source(name="orders", dead_letter="native"))
    ]

    assert "the dead-letter exchange" not in needed
    assert {right.name(Source(name="orders")) for right in RIGHTS} == {
        "orders",
        "",
        "orders.dlq",
        "orders.dlx",
    }
