"""Find the broker that a command sends letters to, and check that the letters belong to it.

Letters carry the name of their broker, and a broker does not know its name. So the command connects first, and looks up
the cluster that answers in the list of brokers that servers have registered in the store. A cluster that is registered
under no name, or under several, has the name of the settings. Letters of other brokers are never sent.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec

from redrive.cli.selection import heads_of, pluralise
from redrive.clock import SystemClock
from redrive.errors import BrokerConflictError, SettingsError, TransportError, use_instead
from redrive.letters import LetterHead
from redrive.settings import Settings, is_reference
from redrive.stores.base import Store
from redrive.stores.brokers import (
    UNNAMED,
    Brokers,
    KnownBroker,
    adopt_unnamed,
    check_same,
    known_brokers,
    name_of,
)
from redrive.transports import Transport, broker_name, broker_url, configured_url, kind_of, open_transport


class BrokerChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line and the settings say about the broker."""

    url: str
    name: str  # of a cluster that is not registered under exactly one name
    is_named: bool = False  # `--broker NAME`: another name is an error
    is_default: bool = False  # neither `--broker` nor `broker.url`: the embedded broker of this machine


class FoundBroker(msgspec.Struct, frozen=True, kw_only=True):
    """The broker that answered."""

    name: str
    url: str
    known: KnownBroker  # kind, cluster and endpoint
    others: Mapping[str, int]  # letters of other brokers that the command was asked to send
    registered: Brokers

    def refusal(self, consequence: str = "nothing was sent") -> SettingsError:
        """The error if none of the letters belongs to this broker."""
        count = sum(self.others.values())
        letters = "the letter belongs" if count == 1 else f"the {count} letters belong"
        return SettingsError(
            f"{consequence}: {letters} to {describe_brokers(self.others, self.registered)}, and this replay sends to "
            f"broker '{self.name}' ({self.known.describe()}); {_advice(self.others)}"
        )

    def describe_others(self) -> str:
        """Which letters are not sent, why, and what to do; empty if there are none."""
        if not self.others:
            return ""
        count = sum(self.others.values())
        excluded = (
            "1 letter was excluded: it belongs"
            if count == 1
            else f"{count} letters were excluded: they belong"
        )
        return (
            f"{excluded} to {describe_brokers(self.others, self.registered)}, and this replay sends to broker "
            f"'{self.name}'; {_advice(self.others)}"
        )


def choose_broker(settings: Settings, registered: Brokers, given: str | None) -> BrokerChoice:
    """The broker that `--broker NAME|URL` names; without it the broker of the settings."""
    configured = broker_name(settings)
    url = configured_url(settings)
    if given is not None and is_reference(given):
        given = broker_url(given)
    if given is None:
        return BrokerChoice(url=url, name=configured, is_default=settings.broker.url is None)
    if ":" in given:
        # The name in the settings is that of the broker in the settings; a broker of another kind is another one.
        same_kind = kind_of(given) == kind_of(url)
        name = settings.broker.name if settings.broker.name and same_kind else kind_of(given)
        return BrokerChoice(url=given, name=name)
    if given == configured:
        return BrokerChoice(url=url, name=configured, is_named=True)
    if given in registered:
        raise SettingsError(
            f"--broker {given}: the settings have no URL for this broker ({registered[given].describe()}); "
            "pass its URL, with user and password if it needs them: --broker URL"
        )
    raise SettingsError(
        f"--broker {given}: no broker has this name{use_instead(given, sorted({configured, *registered}))}"
    )


def identify(choice: BrokerChoice, registered: Brokers, found: KnownBroker) -> str:
    """The name of the broker that answered; an error if the chosen name belongs to another one."""
    name = name_of(registered, found.kind, found.cluster_id) or choice.name
    if choice.is_named and name != choice.name:
        raise BrokerConflictError(
            f"{found.describe()} is registered as broker '{name}', not as '{choice.name}'; "
            f"pass --broker {name}, or correct broker.name or broker.url in the settings"
        )
    if name in registered:
        try:
            check_same(name, registered[name], found)
        except BrokerConflictError as error:
            raise BrokerConflictError(
                f"{error}; to send to the broker that has the name, pass its URL: --broker URL"
            ) from None
    return name


async def find_broker(
    store: Store,
    settings: Settings,
    given: str | None,
    letters: Sequence[LetterHead],
    *,
    is_sample: bool = False,
    consequence: str = "nothing was sent",
) -> FoundBroker:
    """Connect to the broker and find its name; an error if none of these letters belongs to it.

    Letters that name no broker are assigned to it first, if it is registered and they can only be its own.
    `is_sample`: there are more letters than these, so it is no error. `consequence` begins an error message.
    """
    registered = await known_brokers(store)
    choice = choose_broker(settings, registered, given)
    try:
        async with open_transport(choice.url, SystemClock()) as transport:
            found = _known(transport)
    except TransportError as error:
        if not choice.is_default:
            error.args = (f"{consequence}: {error}",)  # whatever kind of error it is
            raise
        brokers = describe_brokers(Counter(head.broker for head in letters), registered)
        belonging = f"; the letters belong to {brokers}" if letters else ""
        raise SettingsError(
            f"{consequence}: neither --broker nor broker.url names a broker, and the default cannot be used "
            f"({error}){belonging}; pass --broker URL"
        ) from error
    try:
        name = identify(choice, registered, found)
    except BrokerConflictError as error:
        raise BrokerConflictError(f"{consequence}: {error}") from None
    unnamed = f"{UNNAMED}{found.kind}"
    if name in registered and any(head.broker == unnamed for head in letters):
        await adopt_unnamed(store, name, found)
        letters = list((await heads_of(store, [head.id for head in letters])).values())
    others = Counter(head.broker for head in letters if head.broker != name)
    broker = FoundBroker(name=name, url=choice.url, known=found, others=others, registered=registered)
    if letters and others.total() == len(letters) and not is_sample:
        raise broker.refusal(consequence)
    return broker


@asynccontextmanager
async def connect(broker: FoundBroker) -> AsyncIterator[Transport]:
    """Open the transport of a broker that was found before; an error if another cluster answers now."""
    async with open_transport(broker.url, SystemClock()) as transport:
        check_same(broker.name, broker.known, _known(transport))
        yield transport


def describe_brokers(counts: Mapping[str, int], registered: Brokers) -> str:
    """Names, addresses and numbers of letters, the most letters first."""
    described = []
    for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        number = f", {pluralise(count)}" if len(counts) > 1 else ""
        if name.startswith(UNNAMED):
            described.append(f"a broker that is not recorded ({name}{number})")
        else:
            known = registered[name].describe() if name in registered else "not registered"
            described.append(f"broker '{name}' ({known}{number})")
    return " and ".join(described)


def _known(transport: Transport) -> KnownBroker:
    return KnownBroker(kind=transport.kind, cluster_id=transport.cluster_id, endpoint=transport.endpoint)


def _advice(others: Mapping[str, int]) -> str:
    """What to do about letters of other brokers."""
    unnamed = sorted(name for name in others if name.startswith(UNNAMED))
    advice = [f"name their broker with: redrive set-broker NAME broker:{name}" for name in unnamed]
    if len(unnamed) < len(others):
        advice.append(
            "pass the URL of their broker with --broker, or assign them to another one with redrive set-broker"
        )
    return "; ".join(advice)
