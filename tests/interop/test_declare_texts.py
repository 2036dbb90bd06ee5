"""Does RabbitMQ answer a wrong declare, consume, publish or policy with the same texts as the embedded broker?

Each case is carried out on RabbitMQ 4.3 and given to the pure functions of the broker; code and text must be equal.
Where an older version is known to differ, `OLDER` has its answer and why it differs, and the case runs there as well.
"""

import html
import json
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from redrive.amqp import methods as m
from redrive.amqp.connection import Connection
from redrive.amqp.content import Content
from redrive.amqp.errors import AmqpError, ReplyCode
from redrive.amqp.events import Failed, MethodReceived
from redrive.amqp.limits import Limits
from redrive.amqp.methods import Method, Role
from redrive.amqp.properties import BasicProperties, encode_properties
from redrive.amqp.sasl import Credentials, encode_response
from redrive.amqp.values import Int8, Int16, Int32, Timestamp, UInt8, UInt16, UInt32
from redrive.broker.arguments import (
    Declared,
    check_equivalent,
    check_exchange,
    check_server_named,
    check_user_id,
    consumer_arguments,
    parse_expiration,
    parse_queue_arguments,
    routing_headers,
)
from redrive.broker.policies import Policy, PolicyError
from redrive.errors import ServiceError
from tests.services import RABBITMQS, RabbitMQ, Run

Answer = tuple[int, str] | None

QUORUM = {"x-queue-type": "quorum"}
NEWEST = "4.3"

_PATTERN = "Validation failed\n\npattern should be regular expression but is invalid: "

# What older versions answer instead, and why. Two differences have no text of their own and are not here: a quorum
# queue without a delivery limit has one of 20 since version 4.0, and 4.3 can be configured to refuse a transient queue
# that is not exclusive, which the embedded broker always permits.
OLDER: Mapping[str, tuple[Mapping[str, Answer], str]] = {
    "a queue version of 1": (
        {"3.10": None, "4.0": None},
        "version 4.3 has the second format of classic queues alone",
    ),
    "a queue mode that there is not": (
        dict.fromkeys(
            ("3.10", "4.0"),
            (
                406,
                "invalid arg 'x-queue-mode' for queue 'q' in vhost '{}': \"unsupported queue mode 'fast'\"",
            ),
        ),
        "version 4.3 ignores the argument",
    ),
    "an empty queue type": (
        dict.fromkeys(
            ("3.10", "4.0"),
            (406, "invalid arg 'x-queue-type' for queue 'q' in vhost '{}': \"unsupported queue type ''\""),
        ),
        "version 4.3 takes an empty type for the default",
    ),
    "a master locator": (
        {"3.10": None, "4.0": None},
        "a deprecated feature that 4.3 does not permit any more",
    ),
    "redeclare: quorum for classic": (
        {
            "3.10": (
                406,
                (
                    "inequivalent arg 'x-queue-type' for queue 'q' in vhost '{}': received the value 'quorum' of type"
                    " 'longstr' but current is none"
                ),
            )
        },
        "version 4 writes the default type into the arguments of a queue that was declared without one",
    ),
    "redeclare: classic for quorum": (
        {
            "3.10": (
                406,
                (
                    "inequivalent arg 'x-queue-type' for queue 'q' in vhost '{}': received none but current is"
                    " the value 'quorum' of type 'longstr'"
                ),
            )
        },
        "version 4 writes the default type into the arguments of a declare without one",
    ),
    "an unknown exchange type": (
        {"3.10": (503, "unknown exchange type 'sideways'")},
        "version 4 closes the channel, version 3 the whole connection",
    ),
    "a wrong application": (
        {
            "3.10": (
                400,
                "Validation failed\n\napply-to 'queue' unrecognised; should be 'queues', 'exchanges' or 'all'\n",
            )
        },
        "version 4 can tell queue types apart",
    ),
    "delivery-limit of -1": (
        {"3.10": (400, "Validation failed\n\n-1 is not a valid delivery limit\n")},
        "only version 4 has a default limit that one may want to lift",
    ),
    **{
        case: (
            dict.fromkeys(("3.10", "4.0"), (400, f"{_PATTERN}{{{{{text}}}}}\n")),
            "version 4.3 has PCRE2, older ones PCRE",
        )
        for case, text in {
            "a wrong pattern": '"missing )",2',
            "a comment without an end": '"missing ) after comment",4',
            "a star without a thing": '"nothing to repeat",0',
            "a star after a star": '"nothing to repeat",2',
            "a braced quantifier without a thing": '"nothing to repeat",4',
            "an end without a group": '"unmatched parentheses",2',
            "an end without a group, behind a letter of two octets": '"unmatched parentheses",3',
            "a range backwards": '"range out of order in character class",4',
        }.items()
    },
}


class Client:
    """A blocking client with one channel, which is opened again after every error."""

    def __init__(self, rabbitmq: RabbitMQ) -> None:
        address = urlsplit(rabbitmq.amqp_url)
        self.user, self.vhost = unquote(address.username or ""), rabbitmq.vhost
        self._connection = Connection(Role.CLIENT, Limits(heartbeat=0))
        self._socket = socket.create_connection((address.hostname, address.port), timeout=30)
        self._events: list[Method] = []
        self._socket.sendall(self._connection.initiate())
        self.receive()
        response = encode_response("PLAIN", Credentials(self.user, unquote(address.password or "")))
        tune = self.ask(m.ConnectionStartOk(mechanism="PLAIN", response=response), channel=0)
        assert isinstance(tune, m.ConnectionTune)
        self._send(self._connection.negotiate(tune), 0)
        self.ask(m.ConnectionOpen(self.vhost), channel=0)
        self.ask(m.ChannelOpen())

    def close(self) -> None:
        self._socket.close()

    def receive(self) -> Method:
        while not self._events:
            data = self._socket.recv(65536)
            assert data, "RabbitMQ closed the connection"
            for event in self._connection.receive(data):
                assert not isinstance(event, Failed), event
                if isinstance(event, MethodReceived):
                    self._events.append(event.method)
        return self._events.pop(0)

    def ask(self, method: Method, channel: int = 1, content: Content | None = None) -> Method:
        self._send(method, channel, content)
        return self.receive()

    def _send(self, method: Method, channel: int, content: Content | None = None) -> None:
        self._socket.sendall(self._connection.send(method, channel, content))

    def answer(self, method: Method, content: Content | None = None) -> Answer:
        """How RabbitMQ refuses this, or nothing if it does not."""
        self._send(method, 1, content)
        answer = self.ask(m.BasicQos()) if content is not None else self.receive()
        if not isinstance(answer, m.ChannelClose | m.ConnectionClose):
            return None
        if isinstance(answer, m.ChannelClose):
            self._send(m.ChannelCloseOk(), 1)
            self.ask(m.ChannelOpen())
        return answer.reply_code, answer.reply_text


@pytest.fixture
def rabbitmq(request: pytest.FixtureRequest, service_run: Run) -> Iterator[RabbitMQ]:
    """A fresh vhost, on the version that the case asks for or else on the newest."""
    server = RABBITMQS[getattr(request, "param", NEWEST)]
    with service_run.address(server, os.environ).fresh() as vhost:
        yield vhost


def each(cases: Iterable[str], prefix: str = "") -> pytest.MarkDecorator:
    """Run each case on the newest version, and on the older ones that are known to differ."""
    pairs = [
        pytest.param(generation, case, id=f"{case}-{generation}", marks=pytest.mark.service(server.name))
        for generation, server in RABBITMQS.items()
        for case in cases
        if generation == NEWEST or generation in OLDER.get(prefix + case, ({}, ""))[0]
    ]
    return pytest.mark.parametrize(("rabbitmq", "case"), pairs, indirect=["rabbitmq"])


@pytest.fixture
def client(rabbitmq: RabbitMQ) -> Iterator[Client]:
    """A client of the fresh vhost."""
    client = Client(rabbitmq)
    yield client
    client.close()


def ours(function: Callable[..., object], *args: Any, **named: Any) -> Answer:
    try:
        function(*args, **named)
    except AmqpError as error:
        return int(error.code), error.reply_text
    return None


def agree(rabbitmq: RabbitMQ, case: str, theirs: Answer, mine: Answer) -> None:
    """Both say the same, or an older one says what the table of differences says."""
    answers, reason = OLDER.get(case, ({}, ""))
    if rabbitmq.generation not in answers:
        assert mine == theirs
        return
    older = answers[rabbitmq.generation]
    expected = older and (older[0], _name(older[0]) + older[1].format(rabbitmq.vhost))
    assert theirs == expected
    assert mine != theirs, f"no difference any more: {reason}"


def _name(code: int) -> str:
    return f"{ReplyCode(code).name} - " if code != 400 else ""


# --- Declaring a queue ------------------------------------------------------------------------------------

QUEUES: Mapping[str, Mapping[str, object]] = {
    "no arguments": {},
    "an argument of the client's own": {"x-mine": 1, "other": "y"},
    "a ttl of zero": {"x-message-ttl": 0},
    "a negative ttl": {"x-message-ttl": Int32(-1)},
    "the longest ttl": {"x-message-ttl": 315_360_000_000},
    "a longer ttl": {"x-message-ttl": 315_360_000_001},
    "a ttl that is text": {"x-message-ttl": "1000"},
    "a ttl that is a float": {"x-message-ttl": 1.5},
    "a ttl that is a boolean": {"x-message-ttl": True},
    "a ttl that is a time": {"x-message-ttl": Timestamp(1)},
    "a ttl that is nothing": {"x-message-ttl": None},
    "a ttl that is a table": {"x-message-ttl": {"a": 1}},
    "a ttl that is an array": {"x-message-ttl": [1]},
    "a ttl that is octets": {"x-message-ttl": b"1"},
    "an expiry of zero": {"x-expires": 0},
    "a negative expiry": {"x-expires": -5},
    "an expiry of ten years": {"x-expires": 315_360_000_000},
    "an expiry of more": {"x-expires": 315_360_000_001},
    "a negative length": {"x-max-length": Int8(-1)},
    "a length of zero": {"x-max-length": UInt8(0)},
    "a length that is text": {"x-max-length": "1"},
    "negative bytes": {"x-max-length-bytes": Int16(-7)},
    "bytes of an unsigned width": {"x-max-length-bytes": UInt32(4_000_000_000)},
    "a priority of 255": {"x-max-priority": UInt16(255)},
    "a priority of 256": {"x-max-priority": 256},
    "a negative priority": {"x-max-priority": -1},
    "an unknown overflow": {"x-overflow": "drop-tail"},
    "an overflow that is a number": {"x-overflow": 1},
    "reject-publish-dlx": {"x-overflow": "reject-publish-dlx"},
    "the default exchange as DLX": {"x-dead-letter-exchange": ""},
    "a DLX that is a number": {"x-dead-letter-exchange": Int32(1)},
    "a DLX that is a number, and a wrong type": {"x-queue-type": "none", "x-dead-letter-exchange": 1},
    "a routing key without a DLX": {"x-dead-letter-routing-key": "k"},
    "a routing key that is a number": {"x-dead-letter-exchange": "x", "x-dead-letter-routing-key": 1},
    "a single active consumer that is text": {"x-single-active-consumer": "yes"},
    "a single active consumer": {"x-single-active-consumer": True},
    "an unknown queue type": {"x-queue-type": "none"},
    "a queue type with quotes": {"x-queue-type": 'a"b\\c'},
    "a queue type that is a number": {"x-queue-type": 1},
    "classic by name": {"x-queue-type": "classic"},
    "two mistakes": {"x-max-length": -1, "x-expires": 0},
    "a delivery limit on a classic queue": {"x-delivery-limit": 3},
    "a strategy on a classic queue": {"x-dead-letter-strategy": "at-least-once"},
    "an age on a classic queue": {"x-max-age": "1D"},
    "a wrong key and a wrong value": {"x-delivery-limit": 3, "x-max-length": -1},
    "a queue version of 3": {"x-queue-version": 3},
    "a queue version of 1": {"x-queue-version": Int32(1)},
    "a queue mode that there is not": {"x-queue-mode": "fast"},
    "an empty queue type": {"x-queue-type": ""},
    "a queue version that is text": {"x-queue-version": "1"},
    "a master locator": {"x-queue-master-locator": "min-masters"},
    "a master locator and a wrong length": {"x-queue-master-locator": "min-masters", "x-max-length": -1},
    "a quorum queue with a master locator": {**QUORUM, "x-queue-master-locator": "min-masters"},
    "quorum": QUORUM,
    "a quorum queue with a priority": {**QUORUM, "x-max-priority": 5},
    "a quorum queue with a strategy": {**QUORUM, "x-dead-letter-strategy": "at-least-once"},
    "a quorum queue with an unknown strategy": {**QUORUM, "x-dead-letter-strategy": "twice"},
    "a quorum queue with a strategy that is a number": {**QUORUM, "x-dead-letter-strategy": 2},
    "a quorum queue with a delivery limit": {**QUORUM, "x-delivery-limit": 3},
    "a quorum queue with an unlimited delivery": {**QUORUM, "x-delivery-limit": -1},
    "a quorum queue with a group of none": {**QUORUM, "x-quorum-initial-group-size": 0},
    "a quorum queue with a negative length": {**QUORUM, "x-max-length": -1},
    "a quorum queue of a mode": {**QUORUM, "x-queue-mode": "lazy"},
    "a quorum queue with an unknown locator": {**QUORUM, "x-queue-leader-locator": "nowhere"},
}


@each(QUEUES)
def test_a_queue_is_refused_in_the_words_of_rabbitmq(rabbitmq: RabbitMQ, client: Client, case: str) -> None:
    arguments = QUEUES[case]

    theirs = client.answer(m.QueueDeclare("q", durable=True, arguments=arguments))

    flags = {"durable": True, "exclusive": False, "auto_delete": False}
    agree(rabbitmq, case, theirs, ours(parse_queue_arguments, "q", client.vhost, arguments, **flags))


PROPERTIES: Mapping[str, Mapping[str, bool]] = {
    "a transient quorum queue": {"durable": False, "exclusive": False, "auto_delete": False},
    "an exclusive quorum queue": {"durable": True, "exclusive": True, "auto_delete": False},
    "an auto-delete quorum queue": {"durable": True, "exclusive": False, "auto_delete": True},
    "a quorum queue with everything wrong": {"durable": False, "exclusive": True, "auto_delete": True},
}


@each(PROPERTIES)
def test_a_quorum_queue_must_be_durable_shared_and_lasting(
    rabbitmq: RabbitMQ, client: Client, case: str
) -> None:
    flags = PROPERTIES[case]

    theirs = client.answer(m.QueueDeclare("q", arguments=QUORUM, **flags))

    agree(rabbitmq, case, theirs, ours(parse_queue_arguments, "q", client.vhost, QUORUM, **flags))


def test_a_quorum_queue_must_have_a_name(rabbitmq: RabbitMQ, client: Client) -> None:
    theirs = client.answer(m.QueueDeclare("", durable=True, arguments=QUORUM))

    agree(rabbitmq, "no name", theirs, ours(check_server_named, QUORUM))


# --- Declaring again --------------------------------------------------------------------------------------

AGAIN: Mapping[str, tuple[Declared, Declared]] = {
    "the same": (Declared(arguments={"x-max-length": 1}), Declared(arguments={"x-max-length": 1})),
    "another durability": (Declared(durable=True), Declared()),
    "another end": (Declared(), Declared(auto_delete=True)),
    "a new argument": (Declared(), Declared(arguments={"x-max-length": Int32(100)})),
    "an argument less": (Declared(arguments={"x-message-ttl": 100}), Declared()),
    "another number": (
        Declared(arguments={"x-message-ttl": 1}),
        Declared(arguments={"x-message-ttl": Int8(2)}),
    ),
    "another width": (
        Declared(arguments={"x-message-ttl": 1}),
        Declared(arguments={"x-message-ttl": UInt8(1)}),
    ),
    "another text": (
        Declared(arguments={"x-overflow": "drop-head"}),
        Declared(arguments={"x-overflow": "x"}),
    ),
    "a new text": (Declared(), Declared(arguments={"x-dead-letter-exchange": "dlx"})),
    "another type of value": (
        Declared(arguments={"x-dead-letter-exchange": "1"}),
        Declared(arguments={"x-dead-letter-exchange": 1}),
    ),
    "a boolean": (Declared(), Declared(arguments={"x-single-active-consumer": True})),
    "two booleans": (
        Declared(arguments={"x-single-active-consumer": False}),
        Declared(arguments={"x-single-active-consumer": True}),
    ),
    "a float for a number": (
        Declared(arguments={"x-max-length": 1}),
        Declared(arguments={"x-max-length": 1.0}),
    ),
    "a boolean for a number": (
        Declared(arguments={"x-max-length": 1}),
        Declared(arguments={"x-max-length": True}),
    ),
    "an array": (Declared(), Declared(arguments={"x-max-length": [Int32(1), "a"]})),
    "a table": (Declared(), Declared(arguments={"x-max-length": {"a": "b", "c": True}})),
    "nothing": (Declared(), Declared(arguments={"x-max-length": None})),
    "two differences": (
        Declared(),
        Declared(arguments={"x-max-length": 1, "x-expires": 5, "x-dead-letter-exchange": "x"}),
    ),
    "an argument of the client's own": (Declared(), Declared(arguments={"x-mine": 1})),
    "classic by name": (Declared(), Declared(arguments={"x-queue-type": "classic"})),
    "classic no longer by name": (Declared(arguments={"x-queue-type": "classic"}), Declared()),
    "quorum for classic": (Declared(durable=True), Declared(durable=True, arguments=QUORUM)),
    "classic for quorum": (Declared(durable=True, arguments=QUORUM), Declared(durable=True)),
    "a delivery limit": (
        Declared(durable=True, arguments={**QUORUM, "x-delivery-limit": 5}),
        Declared(durable=True, arguments={**QUORUM, "x-delivery-limit": 6}),
    ),
}


@each(AGAIN, "redeclare: ")
def test_a_queue_that_differs_is_refused_in_the_words_of_rabbitmq(
    rabbitmq: RabbitMQ, client: Client, case: str
) -> None:
    first, then = (
        m.QueueDeclare("q", durable=each.durable, auto_delete=each.auto_delete, arguments=each.arguments)
        for each in AGAIN[case]
    )
    assert client.answer(first) is None

    theirs = client.answer(then)

    agree(
        rabbitmq,
        f"redeclare: {case}",
        theirs,
        ours(check_equivalent, "queue", "q", client.vhost, *AGAIN[case]),
    )


def exchange(kind: str = "direct", **fields: Any) -> Declared:
    return Declared(type=kind, **fields)


EXCHANGES: Mapping[str, tuple[Declared, Declared]] = {
    "the same": (exchange(), exchange()),
    "another type": (exchange(), exchange("fanout")),
    "another durability": (exchange(durable=True), exchange()),
    "another end": (exchange(), exchange(auto_delete=True)),
    "internal": (exchange(), exchange(internal=True)),
    "an alternate exchange": (exchange(), exchange(arguments={"alternate-exchange": "ae"})),
    "another alternate exchange": (
        exchange(arguments={"alternate-exchange": "ae"}),
        exchange(arguments={"alternate-exchange": "other"}),
    ),
    "no alternate exchange": (exchange(arguments={"alternate-exchange": "ae"}), exchange()),
    "an argument of the client's own": (exchange(), exchange(arguments={"x-mine": 1})),
    "everything": (exchange(), exchange("topic", durable=True, auto_delete=True, internal=True)),
}


@each(EXCHANGES, "exchange: ")
def test_an_exchange_that_differs_is_refused_in_the_words_of_rabbitmq(
    rabbitmq: RabbitMQ, client: Client, case: str
) -> None:
    first, then = (
        m.ExchangeDeclare(
            "x",
            each.type,
            durable=each.durable,
            auto_delete=each.auto_delete,
            internal=each.internal,
            arguments=each.arguments,
        )
        for each in EXCHANGES[case]
    )
    assert client.answer(first) is None

    theirs = client.answer(then)

    agree(
        rabbitmq,
        f"exchange: {case}",
        theirs,
        ours(check_equivalent, "exchange", "x", client.vhost, *EXCHANGES[case]),
    )


NEW_EXCHANGES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "an exchange": ("topic", {"alternate-exchange": "ae"}),
    "an alternate exchange that is a number": ("topic", {"alternate-exchange": Int32(1)}),
    "an unknown exchange type": ("sideways", {}),
}


@each(NEW_EXCHANGES)
def test_a_new_exchange_is_refused_in_the_words_of_rabbitmq(
    rabbitmq: RabbitMQ, client: Client, case: str
) -> None:
    kind, arguments = NEW_EXCHANGES[case]

    theirs = client.answer(m.ExchangeDeclare("x", kind, arguments=arguments))

    agree(rabbitmq, case, theirs, ours(check_exchange, "x", client.vhost, kind, arguments))


# --- Consuming and publishing -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "arguments"),
    [
        ("a consumer", {}),
        ("a consumer's priority", {"x-priority": Int32(-3)}),
        ("a consumer's priority in text", {"x-priority": "1"}),
        ("a consumer's priority as a boolean", {"x-priority": True}),
        ("a consumer's offset", {"x-stream-offset": "first"}),
        ("a consumer's own argument", {"x-mine": 1}),
    ],
)
def test_a_consumer_is_refused_in_the_words_of_rabbitmq(
    rabbitmq: RabbitMQ, client: Client, case: str, arguments: Mapping[str, object]
) -> None:
    assert client.answer(m.QueueDeclare("q", durable=True)) is None

    theirs = client.answer(m.BasicConsume("q", "tag", arguments=arguments))

    agree(rabbitmq, case, theirs, ours(consumer_arguments, "q", client.vhost, arguments))


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "60000",
        "+5",
        "-1",
        "315360000000",
        "315360000001",
        "",
        "soon",
        "5s",
        "5 ",
        " 5",
        "1.5",
        "5\n",
        '5"\\',
    ],
)
def test_an_expiration_is_refused_in_the_words_of_rabbitmq(
    rabbitmq: RabbitMQ, client: Client, text: str
) -> None:
    properties = encode_properties(BasicProperties(expiration=text))

    theirs = client.answer(m.BasicPublish("", "q"), Content(properties, b"body"))

    agree(rabbitmq, f"expiration {text}", theirs, ours(parse_expiration, text))


def test_a_false_user_id_is_refused_in_the_words_of_rabbitmq(rabbitmq: RabbitMQ, client: Client) -> None:
    for claimed in (client.user, "somebody"):
        properties = encode_properties(BasicProperties(user_id=claimed))

        theirs = client.answer(m.BasicPublish("", "q"), Content(properties, b"body"))

        agree(rabbitmq, "user id", theirs, ours(check_user_id, claimed, client.user))


@pytest.mark.parametrize(
    "headers", [{"CC": ["a", 1]}, {"CC": "a"}, {"BCC": Int32(1)}, {"CC": None}, {"CC": {}}]
)
def test_a_routing_header_is_refused_in_the_words_of_rabbitmq(
    rabbitmq: RabbitMQ, client: Client, headers: Mapping[str, object]
) -> None:
    properties = encode_properties(BasicProperties(headers=headers))

    theirs = client.answer(m.BasicPublish("", "q"), Content(properties, b"body"))

    agree(rabbitmq, f"routing header {headers}", theirs, ours(routing_headers, headers))


# --- Policies ---------------------------------------------------------------------------------------------

POLICIES: Mapping[str, Mapping[str, object]] = {
    "a policy": {"pattern": "^a", "definition": {"max-length": 1}},
    "an empty definition": {"pattern": "", "definition": {}},
    "an unknown key": {"pattern": "", "definition": {"max-width": 1, "a": {"b": [True, None, 1.5, "x"]}}},
    "an unknown key and a wrong value": {"pattern": "", "definition": {"a": 1, "max-length": -1}},
    "two wrong values": {"pattern": "", "definition": {"message-ttl": -1, "expires": 0}},
    "a wrong application": {"pattern": "", "definition": {"max-length": 1}, "apply-to": "queue"},
    "a wrong pattern": {"pattern": "(a", "definition": {"max-length": 1}},
    "a set without an end": {"pattern": "a[b", "definition": {"max-length": 1}},
    "a star without a thing": {"pattern": "*b", "definition": {"max-length": 1}},
    "an end without a group": {"pattern": "ab)", "definition": {"max-length": 1}},
    "a comment without an end": {"pattern": "(?#c", "definition": {"max-length": 1}},
    "a star after a star": {"pattern": "a**", "definition": {"max-length": 1}},
    "a braced quantifier without a thing": {"pattern": "a|{2}", "definition": {"max-length": 1}},
    "a quantifier backwards": {"pattern": "a{2,1}", "definition": {"max-length": 1}},
    "an escape at the end": {"pattern": "a\\", "definition": {"max-length": 1}},
    "a range backwards": {"pattern": "x[z-a]", "definition": {"max-length": 1}},
    "an end without a group, behind a letter of two octets": {
        "pattern": "äb)",
        "definition": {"max-length": 1},
    },
    "a pattern that is a number": {"pattern": 5, "definition": {"max-length": 1}},
    "a priority in text": {"pattern": "", "definition": {"max-length": 1}, "priority": "high"},
    "everything wrong": {"pattern": 5, "definition": {"max-length": "1"}, "priority": "y"},
    **{
        f"{key} of {value!r}": {"pattern": "", "definition": {key: value}}
        for key, value in (
            ("alternate-exchange", 1),
            ("dead-letter-exchange", 1),
            ("dead-letter-exchange", ""),
            ("dead-letter-routing-key", True),
            ("dead-letter-strategy", "twice"),
            ("message-ttl", 0),
            ("message-ttl", "1"),
            ("message-ttl", 1.5),
            ("expires", 0),
            ("expires", 1),
            ("max-length", -1),
            ("max-length", 0),
            ("max-length-bytes", None),
            ("max-in-memory-length", -1),
            ("max-in-memory-bytes", -1),
            ("overflow", "drop-tail"),
            ("overflow", "reject-publish-dlx"),
            ("delivery-limit", "many"),
            ("delivery-limit", -1),
            ("queue-mode", "fast"),
            ("queue-version", 3),
            ("max-age", "1x"),
            ("max-age", "1D"),
            ("queue-leader-locator", "nowhere"),
            ("initial-cluster-size", -1),
            ("consumer-timeout", -1),
            ("consumer-timeout", 0),
            ("target-group-size", 0),
            ("delayed-retry-type", "all"),
            ("delayed-retry-type", "disabled"),
            ("delayed-retry-type", "sometimes"),
            ("delayed-retry-type", ["all"]),
            ("delayed-retry-min", 0),
            ("delayed-retry-min", 1),
            ("delayed-retry-min", True),
            ("delayed-retry-max", "1"),
        )
    },
    "a delay without its type": {
        "pattern": "",
        "definition": {"delayed-retry-min": 5, "delayed-retry-max": 9},
    },
    "a largest delay below the smallest": {
        "pattern": "",
        "definition": {"delayed-retry-type": "all", "delayed-retry-min": 5, "delayed-retry-max": 3},
    },
    "two wrong delays": {"pattern": "", "definition": {"delayed-retry-min": "x", "delayed-retry-max": "y"}},
    "a wrong delay and a wrong length": {
        "pattern": "",
        "definition": {"delayed-retry-type": "x", "max-length": "y"},
    },
    "a missing delay and a wrong group": {
        "pattern": "",
        "definition": {"delayed-retry-type": "all", "target-group-size": 0},
    },
    "a delay and an unknown key": {
        "pattern": "",
        "definition": {"delayed-retry-type": "all", "delayed-retry-min": 5, "zzz": 1},
    },
}


@each(POLICIES)
def test_a_policy_is_refused_in_the_words_of_rabbitmq(rabbitmq: RabbitMQ, case: str) -> None:
    theirs: Answer = None
    try:
        rabbitmq.api("PUT", f"/policies/{rabbitmq.vhost}/p", POLICIES[case])
    except ServiceError as error:
        detail = str(error).partition("400: ")[2]
        reason = html.unescape(json.loads(detail)["reason"])  # version 3 escapes it for HTML
        theirs = 400, re.sub(r"\n +", "", reason)  # Erlang breaks a long term at column 80

    mine: Answer = None
    try:
        Policy.from_json(POLICIES[case], rabbitmq.vhost, "p")
    except PolicyError as error:
        mine = 400, error.reason

    agree(rabbitmq, case, theirs, mine)
