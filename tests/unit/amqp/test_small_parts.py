"""Reply codes, logins and heartbeats."""

import pytest
from hypothesis import given, settings, strategies as st

from redrive.amqp.errors import (
    HARD_CODES,
    SOFT_CODES,
    AmqpError,
    FrameSyntaxError,
    HardError,
    MisuseError,
    ReplyCode,
    SoftError,
    error_for,
    fit_reply_text,
)
from redrive.amqp.heartbeat import Heartbeats
from redrive.amqp.sasl import Credentials, decode_response, encode_response
from redrive.errors import RedriveError


@pytest.mark.parametrize("code", [311, 312, 313, 403, 404, 405, 406])
def test_these_codes_cost_the_channel(code: int) -> None:
    assert isinstance(error_for(code, "text"), SoftError)
    assert code in SOFT_CODES


@pytest.mark.parametrize("code", [320, 402, 501, 502, 503, 504, 505, 506, 530, 540, 541])
def test_these_codes_cost_the_connection(code: int) -> None:
    assert isinstance(error_for(code, "text"), HardError)
    assert code in HARD_CODES


def test_a_code_that_nobody_knows_costs_the_connection() -> None:
    error = error_for(999, "odd", 1, 2)
    assert isinstance(error, HardError)
    assert "999" in error.text


def test_an_error_says_what_a_close_needs() -> None:
    error = SoftError(ReplyCode.NOT_FOUND, "no queue 'q' in vhost '/'", 50, 10)
    assert isinstance(error, RedriveError)
    assert error.reply_text == str(error) == "NOT_FOUND - no queue 'q' in vhost '/'"
    assert (error.code, error.class_id, error.method_id) == (404, 50, 10)
    assert FrameSyntaxError("x").code is ReplyCode.FRAME_ERROR


@given(st.text(max_size=400))
@settings(max_examples=100, deadline=None)
def test_a_reply_text_always_fits_a_short_string(text: str) -> None:
    assert len(fit_reply_text(text).encode()) <= 255


def test_a_long_reply_text_is_cut_between_characters() -> None:
    assert fit_reply_text("é" * 200) == "é" * 126 + "..."


@given(st.text(max_size=20).filter(lambda text: "\x00" not in text), st.text(max_size=20))
@settings(max_examples=100, deadline=None)
def test_a_login_comes_back_as_it_was(user: str, password: str) -> None:
    table = Credentials(user, password)
    assert decode_response("AMQPLAIN", encode_response("AMQPLAIN", table)) == table
    if "\x00" not in password:
        assert decode_response("PLAIN", encode_response("PLAIN", table)) == table
    assert decode_response("EXTERNAL", encode_response("EXTERNAL", table)) == Credentials(user)


def test_logins_look_on_the_wire_as_their_mechanisms_say() -> None:
    guest = Credentials("guest", "secret")
    assert encode_response("PLAIN", guest) == b"\x00guest\x00secret"
    wire = b"\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x06secret"
    assert encode_response("AMQPLAIN", guest) == wire
    assert decode_response("PLAIN", b"other\x00guest\x00secret") == guest


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b"hunter2"),
        ("PLAIN", b"\x00a\x00b\x00hunter2"),
        ("PLAIN", b"\x00a\x00hunter2\xff"),
        ("AMQPLAIN", b"hunter2"),
        ("AMQPLAIN", b"\x05LOGINS\x00\x00\x00\x01a"),
        ("AMQPLAIN", b"\x05LOGINt\x01\x08PASSWORDS\x00\x00\x00\x07hunter2"),
        ("AMQPLAIN", b"\x05LOGINS\x00\x00\x00\x01\xff\x08PASSWORDS\x00\x00\x00\x07hunter2"),
        ("EXTERNAL", b"hunter2\xff"),
        ("hunter2", b"hunter2"),
    ],
)
def test_a_login_that_cannot_be_read_is_a_clear_error_without_the_password(
    mechanism: str, response: bytes
) -> None:
    with pytest.raises(AmqpError) as caught:
        decode_response(mechanism, response)
    assert caught.value.code is ReplyCode.SYNTAX_ERROR
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_credentials_do_not_show_their_password() -> None:
    assert "secret" not in repr(Credentials("guest", "secret"))


def test_a_login_that_cannot_be_written_is_a_misuse() -> None:
    with pytest.raises(MisuseError):
        encode_response("PLAIN", Credentials("a\x00b", "c"))
    with pytest.raises(MisuseError, match="use PLAIN"):
        encode_response("GSSAPI", Credentials("a"))


def test_a_heartbeat_is_due_after_half_the_interval_of_silence() -> None:
    beats = Heartbeats(60)
    assert beats.next_due(100.0) == 130.0
    beats.spoke(120.0)
    assert beats.next_due(121.0) == 150.0


def test_the_peer_is_dead_after_two_intervals_of_silence() -> None:
    beats = Heartbeats(60)
    assert not beats.peer_is_dead(100.0)
    assert not beats.peer_is_dead(220.0)
    assert beats.peer_is_dead(220.1)
    beats.heard(221.0)
    assert not beats.peer_is_dead(300.0)


def test_without_an_interval_nothing_is_due_and_nobody_dies() -> None:
    beats = Heartbeats(0)
    assert beats.next_due(1.0) is None
    assert not beats.peer_is_dead(1e9)
