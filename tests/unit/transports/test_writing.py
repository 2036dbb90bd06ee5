"""What cannot be written is answered for, and holds up none of the others."""

from redrive.errors import FormatError, PublishError
from redrive.testing import a_message
from redrive.transports.base import Publication, Target
from redrive.transports.writing import written


def name_of(publication: Publication) -> str:
    if not publication.target.name:
        raise FormatError("no topic to publish to; name one")
    return publication.target.name


def to(*names: str) -> list[Publication]:
    return [Publication(a_message(), Target(name=name)) for name in names]


def test_what_can_be_written_keeps_its_place_in_the_batch() -> None:
    going, outcomes = written(to("first", "", "third"), name_of)

    assert list(going.items()) == [(0, "first"), (2, "third")]
    assert len(outcomes) == 3


def test_what_cannot_be_written_is_told_why_and_the_others_have_no_error_yet() -> None:
    _, outcomes = written(to("first", "", "third"), name_of)

    assert isinstance(outcomes[1], PublishError)
    assert str(outcomes[1]) == "no topic to publish to; name one"
    assert (outcomes[0], outcomes[2]) == (None, None)


def test_an_empty_batch_has_nothing_to_send_and_nothing_to_answer() -> None:
    assert written([], name_of) == ({}, [])
