"""Failures with one cause share a group, others do not, and no text whatever upsets the grouping (H5)."""

import re
import subprocess
import sys
from itertools import combinations

import pytest
from hypothesis import given, strategies as st

from redrive.letters import Failure, FailureKind, fingerprint, stack_of
from redrive.letters.failure import in_app_frame, normalise
from redrive.testing import a_failure

# Two texts of one cause: only what differs from one message to the next differs.
ONE_CAUSE = [
    ("External API timeout after 5000ms", "External API timeout after 3120ms"),
    ("order 12345 not found", "order 987 not found"),
    ("timeout after 1.5 s", "timeout after 20.25 s"),
    ("balance is -5 EUR", "balance is +1200 EUR"),
    (
        "user 550e8400-e29b-41d4-a716-446655440000 is locked",
        "user 6BA7B810-9DAD-11D1-80B4-00C04FD430C8 is locked",
    ),
    ("connect to 10.0.0.5:5432 refused", "connect to 192.168.17.1:5433 refused"),
    ("connect to 10.0.0.5 refused", "connect to 172.16.0.9 refused"),
    ("failed at 2026-02-11T12:00:00Z", "failed at 2025-12-31T23:59:59Z"),
    ("failed at 2026-02-11 12:00:00,123", "failed at 2026-03-01 08:15:59,999"),
    ("failed at 2026-02-11T12:00:00.123456+01:00", "failed at 2026-02-12T00:00:01.000001-05:30"),
    ("due on 2026-02-11", "due on 2027-01-01"),
    ("object at 0x7f8a1c0d2e50", "object at 0x7ffe00112233"),
    ("commit 9fceb02a is missing", "commit 1a2b3c4d5e6f is missing"),
    ("KeyError: 'customer_17'", "KeyError: 'sku'"),
    ('no column "totals" in the table', 'no column "prices" in the table'),
    ("GET https://api.acme.example/v1/orders/17?x=1 failed", "GET https://api.acme.example/v2/users failed"),
    ("cannot reach amqp://guest@mq-1:5672/shop", "cannot reach amqps://admin@mq-2/billing"),
    ("mail to jane.doe@example.org bounced", "mail to info+x@shop.example.com bounced"),
    ("cannot open /var/lib/app/data/17.json", "cannot open /srv/other/place.json"),
    ("job order-17 was rejected", "job order-18b was rejected"),
    ("lock user_42 is held", "lock user_4711 is held"),
    ("line 3, column 15", "line 40, column 2"),
    ("took 12:30:05", "took 00:00:01"),
    ("Duplicate entry  for\tkey", "Duplicate entry for key"),
    ("CONNECTION RESET BY PEER", "Connection reset by peer"),
    ("  broken pipe\n", "broken pipe"),
    ("one\r\ntwo", "one two"),
    ("request 1,234,567 failed", "request 89 failed"),
    ("invoice 2026 for account 5 of tenant 'north'", "invoice 2027 for account 12 of tenant 'south'"),
]

# Two texts of two causes.
TWO_CAUSES = [
    ("connection refused", "connection reset"),
    ("order 12345 not found", "order 12345 not paid"),
    ("timeout while reading", "timeout while writing"),
    ("user is locked", "user is unknown"),
    ("disk full", "disk failed"),
    ("invalid amount", "invalid currency"),
    ("card declined", "card expired"),
    ("cannot parse header", "cannot parse body"),
    ("host not found", "host not reachable"),
    ("permission denied", "authentication failed"),
    ("HTTP error: bad gateway", "HTTP error: gateway timeout"),
    ("deadlock detected", "lock wait timeout exceeded"),
    ("no such table", "no such column"),
    ("missing field in request", "missing field in response"),
    ("queue orders is full", "queue billing is full"),
    ("too many connections", "too many requests"),
    ("expected a list, got a string", "expected a string, got a list"),
    ("unexpected end of input", "unexpected character in input"),
    ("certificate has expired", "certificate is not trusted"),
    ("schema mismatch", "schema missing"),
    ("order 5", "invoice 5"),
    ("5 of the rows failed", "5 of the columns failed"),
    ("value is null", "value is negative"),
    ("stock too low", "price too low"),
    ("duplicate invoice 4711", "duplicate order 4711"),
    ("", "something"),
    ("sender unknown", "recipient unknown"),
    ("Überweisung abgelehnt", "Lastschrift abgelehnt"),
]


@pytest.mark.parametrize(("left", "right"), ONE_CAUSE)
def test_failures_of_one_cause_share_a_group(left: str, right: str) -> None:
    assert fingerprint("ValueError", left) == fingerprint("ValueError", right), (
        normalise(left),
        normalise(right),
    )


@pytest.mark.parametrize(("left", "right"), TWO_CAUSES)
def test_failures_of_two_causes_do_not_share_a_group(left: str, right: str) -> None:
    assert fingerprint("ValueError", left) != fingerprint("ValueError", right), normalise(left)


def test_no_two_of_all_these_causes_share_a_group_by_accident() -> None:
    causes = {normalise(left) for left, _ in ONE_CAUSE} | {
        normalise(text) for pair in TWO_CAUSES for text in pair
    }
    groups = {fingerprint("ValueError", cause) for cause in causes}
    assert len(groups) == len(causes)


def test_the_type_of_the_error_tells_groups_apart() -> None:
    assert fingerprint("ValueError", "bad") != fingerprint("KeyError", "bad")
    assert fingerprint("ab", "c") != fingerprint("a", "bc")


def test_a_fingerprint_is_sixteen_hexadecimal_digits_and_always_the_same() -> None:
    found = fingerprint("TimeoutError", "External API timeout after 5000ms")
    assert re.fullmatch("[0-9a-f]{16}", found)
    assert found == fingerprint("TimeoutError", "External API timeout after 1ms", "")
    # Written down: stored letters of older versions have to stay in their groups.
    assert fingerprint("TimeoutError", "timeout") == "f6addecfd749399b"


def test_a_failure_knows_its_group() -> None:
    failure = a_failure("order 5 not found", error_type="LookupError", stack=PYTHON)
    assert failure.fingerprint == fingerprint("LookupError", "order 6 not found", PYTHON)


# --- the frame -------------------------------------------------------------------------------------------

PYTHON = """Traceback (most recent call last):
  File "/srv/shop/worker.py", line 40, in run
    handle(message)
  File "/srv/shop/orders/payment.py", line 88, in charge
    client.post(url)
  File "/srv/shop/.venv/lib/python3.11/site-packages/httpx/_client.py", line 1145, in post
    return self.request("POST")
  File "/usr/lib/python3.11/socket.py", line 845, in create_connection
    raise exceptions[0]
TimeoutError: timed out
"""
JAVA = """java.lang.IllegalStateException: no stock
\tat java.base/java.util.Objects.requireNonNull(Objects.java:235)
\tat org.springframework.web.client.RestTemplate.execute(RestTemplate.java:776)
\tat com.acme.shop.StockService.reserve(StockService.java:42)
\tat com.acme.shop.OrderHandler.handle(OrderHandler.java:17)
Caused by: java.io.IOException: closed
\t... 12 more
"""
DOTNET = """System.InvalidOperationException: Sequence contains no elements
   at System.Linq.ThrowHelper.ThrowNoElementsException()
   at Microsoft.EntityFrameworkCore.Query.Run[T](Expression query) in /_/src/Query.cs:line 12
   at Acme.Shop.StockService.Reserve(Int32 id) in C:\\\\src\\\\Shop\\\\StockService.cs:line 42
   at Acme.Shop.Worker.Handle(Message message) in C:\\\\src\\\\Shop\\\\Worker.cs:line 7
"""
JAVASCRIPT = """TypeError: Cannot read properties of undefined (reading 'id')
    at node:internal/process/task_queues:95:5
    at Object.parse (/srv/shop/node_modules/body-parser/index.js:10:3)
    at processPayment (/srv/shop/src/payment.js:88:15)
    at async handle (/srv/shop/src/worker.js:12:3)
"""


@pytest.mark.parametrize(
    ("stack", "frame"),
    [
        (PYTHON, "payment.py:charge"),
        (JAVA, "com.acme.shop.StockService.reserve"),
        (DOTNET, "Acme.Shop.StockService.Reserve"),
        (JAVASCRIPT, "processPayment"),
        (JAVASCRIPT.replace("    at node:internal/process/task_queues:95:5\n", ""), "processPayment"),
    ],
    ids=["Python", "Java", ".NET", "JavaScript", "JavaScript without node:"],
)
def test_the_frame_is_that_of_the_users_code_nearest_to_the_error(stack: str, frame: str) -> None:
    assert in_app_frame(stack) == frame


@pytest.mark.parametrize(
    ("stack", "frame"),
    [
        ('  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode\n', "decoder.py:raw_decode"),
        ("\tat java.util.Optional.get(Optional.java:143)\n", "java.util.Optional.get"),
        ("   at System.Linq.Enumerable.First()\n", "System.Linq.Enumerable.First"),
        ("    at Object.parse (/app/node_modules/x/index.js:1:1)\n", "Object.parse"),
    ],
)
def test_where_all_frames_are_a_librarys_the_nearest_one_counts(stack: str, frame: str) -> None:
    assert in_app_frame(stack) == frame


@pytest.mark.parametrize("stack", ["", "no stack at all", "Error: at last\n", "\n\n\n", "... 12 more"])
def test_a_text_without_frames_has_no_frame(stack: str) -> None:
    assert in_app_frame(stack) == ""


@pytest.mark.parametrize(
    "stack", [PYTHON, JAVA, DOTNET, JAVASCRIPT], ids=["Python", "Java", ".NET", "JavaScript"]
)
def test_line_numbers_folders_and_library_frames_do_not_tell_groups_apart(stack: str) -> None:
    moved = re.sub(r"\d+", lambda found: found[0] if found[0] in {"3", "11", "32"} else "999", stack)
    assert moved != stack
    assert fingerprint("E", "text", stack) == fingerprint("E", "text", moved)
    assert fingerprint("E", "text", stack) == fingerprint("E", "text", stack.replace("/srv/", "/home/me/"))


def test_another_place_in_the_users_code_is_another_group() -> None:
    groups = {
        fingerprint("E", "text", PYTHON),
        fingerprint("E", "text", PYTHON.replace("in charge", "in refund")),
        fingerprint("E", "text", PYTHON.replace("payment.py", "billing.py")),
        fingerprint("E", "text", JAVA),
        fingerprint("E", "text", DOTNET),
        fingerprint("E", "text", JAVASCRIPT),
        fingerprint("E", "text"),
    }
    assert len(groups) == 7


def test_the_stack_of_a_real_error_shows_its_causes_and_leads_to_this_file() -> None:
    def fails() -> None:
        try:
            int("x")
        except ValueError as error:
            raise LookupError("no such order") from error

    with pytest.raises(LookupError) as caught:
        fails()
    stack = stack_of(caught.value)
    assert "ValueError" in stack
    assert "no such order" in stack
    assert in_app_frame(stack) == "test_failure.py:fails"


# --- any text --------------------------------------------------------------------------------------------

_texts = st.text(st.characters()) | st.text(st.sampled_from("at File\"', line 1in(\n)x./:-_@0=\ud800\x00"))


@given(_texts, _texts, st.none() | _texts)
def test_any_text_has_a_group(error_type: str, text: str, stack: str | None) -> None:
    assert re.fullmatch("[0-9a-f]{16}", fingerprint(error_type, text, stack))


def test_failures_too_long_to_be_remembered_are_grouped_like_others() -> None:
    frames = "Traceback (most recent call last):\n" + '  File "/app/orders.py", line 3, in handle\n' * 2
    short, long = (frames + f"ValueError: order 17{' ' * spaces}\n" for spaces in (1, 20_000))
    assert fingerprint("ValueError", "order 17", short) == fingerprint("ValueError", "order 4", long)


@given(_texts)
def test_normalising_leaves_one_line_in_lower_case(text: str) -> None:
    plain = normalise(text)
    assert plain == plain.strip()
    assert "\n" not in plain
    assert "  " not in plain


# (what it begins with, what is repeated, what it ends with)
NASTY = {
    "newlines": ("", "\n", ""),
    "spaces": ("", " ", ""),
    "tabs and newlines": ("", "\t\n", ""),
    "words": ("", "a", ""),
    "digits": ("", "1", ""),
    "dots": ("", "a.", ""),
    "mail": ("", "a@", ""),
    "quotes": ("", "\"'", ""),
    "slashes": ("", "/a", ""),
    "urls": ("", "http://", ""),
    "dashes": ("", "a-", ""),
    "python frames": ("", '  File "', ""),
    "half a frame": ("", '  File "/a.py", line 1, in ', ""),
    "a frame without end": ('  File "', "a", ""),
    "at": ("", "at ", ""),
    "at, at a line's end": ("", "at\n", ""),
    "java frames": ("", "\tat a.b(c)\n", ""),
    "brackets": ("", "(", ""),
    "async": ("", "at async new ", ""),
    "a name without end": ("at ", "a", "!"),
    "spaces after a name": ("at a", " ", "!"),
    "brackets after a name": ("at a", "(", "!"),
    "colons after a name": ("at a", ":", "!"),
    "numbers after a name": ("at a:", "1", "!"),
    "places after a name": ("at a", ":1", "!"),
    "places before a name": ("at ", ":1", ":a"),
    "nothing but places": ("at a", ":1", ""),
    "files after a name": ("at a", " in ", "!"),
}


@pytest.mark.parametrize(("start", "piece", "end"), NASTY.values(), ids=NASTY)
def test_a_megabyte_of_nasty_text_is_grouped_in_linear_time(start: str, piece: str, end: str) -> None:
    # Linear is below a second; the limit only ends what would go on for minutes to days.
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (5, 5))\n"
        "from redrive.letters import fingerprint\n"
        f"start, piece, end = {(start, piece, end)!r}\n"
        "text = start + piece * (1_000_000 // len(piece)) + end\n"
        "print(fingerprint('E', text, text))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"it was still at it after 5 seconds of processor time: {done.stderr}"
    assert re.fullmatch("[0-9a-f]{16}\n", done.stdout)


def test_only_the_beginning_of_a_long_text_is_looked_at() -> None:
    assert fingerprint("E", "x" * 1000 + "one") == fingerprint("E", "x" * 1000 + "another")
    assert fingerprint("E", "x" * 900 + "one") != fingerprint("E", "x" * 900 + "another")


def test_a_failure_is_retryable_and_of_no_kind_unless_somebody_says_so() -> None:
    failure = Failure(error_type="E", text="t", at=a_failure().at)
    assert (failure.kind, failure.retryable, failure.rule, failure.stack) == (
        FailureKind.UNKNOWN,
        True,
        None,
        None,
    )


def test_every_kind_is_written_as_one_word_of_its_own() -> None:
    assert all(re.fullmatch("[a-z_]+", kind) for kind in FailureKind)
    assert all(left.value != right.value for left, right in combinations(FailureKind, 2))
