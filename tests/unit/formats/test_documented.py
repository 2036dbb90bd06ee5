"""What can be read and what can be set is in the documentation, in the words of the code."""

from pathlib import Path

import pytest

from redrive.formats.systems import SYSTEMS
from redrive.letters.convention import FACTS, FORMS, KEYS, RESERVED

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


def rows_of(page: str, heading: str) -> list[list[str]]:
    section = (REFERENCE / page).read_text("utf-8").split(f"\n{heading}\n")[1]
    level = heading.split(maxsplit=1)[0]
    section = section.split(f"\n{level} ")[0]
    return [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in section.splitlines()
        if line.startswith("|")
    ]


def test_every_system_is_documented_in_the_order_in_which_it_is_heard() -> None:
    names = [row[0].strip("`") for row in rows_of("wire-formats.md", "## Dead letters of other systems")]
    known = [name for name in names if name in {row.name for row in SYSTEMS}]

    assert known == [row.name for row in SYSTEMS]
    assert set(RESERVED) <= set(names)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_documented(form: str) -> None:
    gives, meaning = FORMS[form]

    assert [f"`{form}`", gives, meaning] in rows_of("wire-formats.md", "### Custom conventions")


@pytest.mark.parametrize("fact", FACTS)
def test_every_fact_is_documented_with_its_form(fact: str) -> None:
    rows = rows_of("wire-formats.md", "### Custom conventions")

    assert any(f"`{fact}`" in row[0] and row[1] == f"`{FACTS[fact]}`" for row in rows)


@pytest.mark.parametrize("key", KEYS)
def test_every_key_of_a_convention_is_documented(key: str) -> None:
    rows = rows_of("settings.md", "## [[conventions]]")

    assert any(row[0] == f"`{key}`" and row[2] == KEYS[key] for row in rows)
