"""A Kafka that wants TLS and SCRAM: consuming, dead-lettering and looking all get in, and nobody else does."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub does not export them
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from redrive.clock import SystemClock
from redrive.errors import TransportError
from redrive.letters import Message
from redrive.testing.transport_suite.ground import all_done, death_of
from redrive.transports import Publication, Source, Target
from redrive.transports.kafka import KafkaTransport
from tests.services import Kafka, KafkaServer, Run

pytestmark = [pytest.mark.slow, pytest.mark.service("kafka")]

USER, PASSWORD = "shop", "open/sesame?"
LISTENER = "listener.name.sasl_plaintext"  # its name; by the map it speaks TLS here


@pytest.fixture(scope="module")
def secured(service_run: Run, certificates: Path) -> Iterator[Kafka]:
    class Secured(KafkaServer):
        settings: ClassVar = {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            f"{LISTENER}.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            f"{LISTENER}.ssl.keystore.type": "PEM",
            f"{LISTENER}.ssl.keystore.location": str(certificates / "address-and-key.pem"),
            "super.users": f"User:ANONYMOUS;User:{USER}",
        }

    with service_run.private(Secured, os.environ) as server, server.address.fresh() as kafka:
        admin = kafka.admin()
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        made = admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(USER, info, PASSWORD.encode())]
        )
        made[USER].result(timeout=30)
        yield kafka


def url_of(kafka: Kafka, certificate: Path, user: str = f"{USER}:open%2Fsesame%3F") -> str:
    port = urlsplit(kafka.restricted_url).port
    return (
        f"kafkas://{user}@127.0.0.1:{port}/?sasl.mechanism=SCRAM-SHA-512&ssl.ca.location={certificate}"
        f"&group={kafka.name('g')}&connect_timeout=5s"
    )


async def test_over_tls_and_scram_records_are_consumed_and_dead_lettered(
    secured: Kafka, certificates: Path
) -> None:
    topic, graves = secured.topic("orders"), secured.topic("graves")
    async with KafkaTransport(url_of(secured, certificates / "address.pem"), SystemClock()) as transport:
        messages = [Publication(Message(body=body), Target(name=topic)) for body in (b"good", b"bad")]
        assert all_done(await transport.publish(messages), 2)
        receiver = await transport.receiver(Source(name=topic, dead_letter_queue=graves))
        async with asyncio.timeout(60):
            found = list(await receiver.receive())
            while len(found) < 2:
                found += await receiver.receive()
        assert [each.body for each in found] == [b"good", b"bad"]
        assert all_done(await receiver.dead_letter([death_of(found[1])]), 1)
        assert receiver.accept(found[:1]) == 0
        assert await transport.depth(graves) == 1


@pytest.mark.parametrize(
    ("certificate", "user", "says"),
    [
        (
            "address",
            f"{USER}:wrong",
            "user name or password is wrong|user name, password or certificate is wrong",
        ),
        ("guest", f"{USER}:open%2Fsesame%3F", "ssl.ca.location|certificate"),
    ],
    ids=["wrong password", "wrong certificate"],
)
async def test_who_has_the_wrong_password_or_trusts_another_is_told_so(
    secured: Kafka, certificates: Path, certificate: str, user: str, says: str
) -> None:
    with pytest.raises(TransportError, match=says) as told:
        async with KafkaTransport(url_of(secured, certificates / f"{certificate}.pem", user), SystemClock()):
            pass
    assert "sesame" not in str(told.value)
    assert "wrong@" not in str(told.value)
