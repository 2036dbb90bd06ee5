"""Which methods AMQP 0-9-1 has, with which fields, and who may send them.

The rule: a method is described once. A class names its fields with their wire types, and its `spec` says
its number, its sender, what answers it, whether content follows, and which reserved fields surround the
named ones. The tables at the end and everything in `codec` are computed from that.

RabbitMQ's extensions are methods like the others. This module does not read or write bytes, and it does
not know in which state which method is allowed.
"""

from collections.abc import Mapping
from enum import IntFlag
from typing import Annotated, ClassVar, Final, Literal, NamedTuple, TypeAlias

from msgspec import Struct, field

Octet: TypeAlias = Annotated[int, "octet"]
Short: TypeAlias = Annotated[int, "short"]
Long: TypeAlias = Annotated[int, "long"]
LongLong: TypeAlias = Annotated[int, "longlong"]
Bit: TypeAlias = Annotated[bool, "bit"]
ShortStr: TypeAlias = Annotated[str, "shortstr"]
Text: TypeAlias = Annotated[str, "text"]  # a short string for people: one cut inside a character is no error
LongStr: TypeAlias = Annotated[bytes, "longstr"]
Table: TypeAlias = Annotated[Mapping[str, object], "table"]
Kind: TypeAlias = Literal["octet", "short", "long", "longlong", "bit", "shortstr", "text", "longstr", "table"]


class Role(IntFlag):
    """The two ends of a connection; `EITHER` is for methods that both may send."""

    CLIENT = 1
    SERVER = 2
    EITHER = 3


class Spec(NamedTuple):
    """What is to be known about a method besides its named fields."""

    class_id: int
    method_id: int
    sender: Role
    replies: tuple[str, ...] = ()
    content: bool = False
    leading: tuple[Kind, ...] = ()
    trailing: tuple[Kind, ...] = ()

    @property
    def number(self) -> int:
        """Class and method in one number, as the first four octets of the payload read."""
        return self.class_id << 16 | self.method_id


class Method(Struct, frozen=True):
    """Any method; each subclass is one."""

    spec: ClassVar[Spec]

    @classmethod
    def wire_name(cls) -> str:
        """The name in the specification: `queue.declare-ok` for `QueueDeclareOk`."""
        words = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in cls.__name__)
        return words[1:].replace("-", ".", 1)


class ConnectionStart(Method, frozen=True):
    """The server says who it is and how one may log in."""

    spec = Spec(10, 10, Role.SERVER, replies=("connection.start-ok",))
    version_major: Octet = 0
    version_minor: Octet = 9
    server_properties: Table = field(default_factory=dict)
    mechanisms: LongStr = b"PLAIN"
    locales: LongStr = b"en_US"


class ConnectionStartOk(Method, frozen=True):
    """The client says who it is and logs in."""

    spec = Spec(10, 11, Role.CLIENT)
    client_properties: Table = field(default_factory=dict)
    mechanism: ShortStr = "PLAIN"
    response: LongStr = b""
    locale: ShortStr = "en_US"


class ConnectionSecure(Method, frozen=True):
    """One more question of the login mechanism."""

    spec = Spec(10, 20, Role.SERVER, replies=("connection.secure-ok",))
    challenge: LongStr = b""


class ConnectionSecureOk(Method, frozen=True):
    """The answer to `ConnectionSecure`."""

    spec = Spec(10, 21, Role.CLIENT)
    response: LongStr = b""


class ConnectionTune(Method, frozen=True):
    """The limits that the server proposes; 0 is no limit."""

    spec = Spec(10, 30, Role.SERVER, replies=("connection.tune-ok",))
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


class ConnectionTuneOk(Method, frozen=True):
    """The limits that hold from now on."""

    spec = Spec(10, 31, Role.CLIENT)
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


class ConnectionOpen(Method, frozen=True):
    """The client chooses a virtual host."""

    spec = Spec(10, 40, Role.CLIENT, replies=("connection.open-ok",), trailing=("shortstr", "bit"))
    virtual_host: ShortStr = "/"


class ConnectionOpenOk(Method, frozen=True):
    """The virtual host is open."""

    spec = Spec(10, 41, Role.SERVER, trailing=("shortstr",))


class ConnectionClose(Method, frozen=True):
    """Whoever sends this says nothing more."""

    spec = Spec(10, 50, Role.EITHER, replies=("connection.close-ok",))
    reply_code: Short = 200
    reply_text: Text = ""
    class_id: Short = 0
    method_id: Short = 0


class ConnectionCloseOk(Method, frozen=True):
    """The last words on a connection."""

    spec = Spec(10, 51, Role.EITHER)


class ConnectionBlocked(Method, frozen=True):
    """The server takes no publishes for now (RabbitMQ)."""

    spec = Spec(10, 60, Role.SERVER)
    reason: Text = ""


class ConnectionUnblocked(Method, frozen=True):
    """Publishes are taken again (RabbitMQ)."""

    spec = Spec(10, 61, Role.SERVER)


class ConnectionUpdateSecret(Method, frozen=True):
    """A new token in place of one that expires (RabbitMQ)."""

    spec = Spec(10, 70, Role.CLIENT, replies=("connection.update-secret-ok",))
    new_secret: LongStr = b""
    reason: Text = ""


class ConnectionUpdateSecretOk(Method, frozen=True):
    """The new token is good (RabbitMQ)."""

    spec = Spec(10, 71, Role.SERVER)


class ChannelOpen(Method, frozen=True):
    """Open the channel that this is sent on."""

    spec = Spec(20, 10, Role.CLIENT, replies=("channel.open-ok",), trailing=("shortstr",))


class ChannelOpenOk(Method, frozen=True):
    """The channel is open."""

    spec = Spec(20, 11, Role.SERVER, trailing=("longstr",))


class ChannelFlow(Method, frozen=True):
    """Stop or resume sending content."""

    spec = Spec(20, 20, Role.EITHER, replies=("channel.flow-ok",))
    active: Bit = True


class ChannelFlowOk(Method, frozen=True):
    """The answer to `ChannelFlow`."""

    spec = Spec(20, 21, Role.EITHER)
    active: Bit = True


class ChannelClose(Method, frozen=True):
    """Whoever sends this says nothing more on this channel."""

    spec = Spec(20, 40, Role.EITHER, replies=("channel.close-ok",))
    reply_code: Short = 200
    reply_text: Text = ""
    class_id: Short = 0
    method_id: Short = 0


class ChannelCloseOk(Method, frozen=True):
    """The last words on a channel."""

    spec = Spec(20, 41, Role.EITHER)


class AccessRequest(Method, frozen=True):
    """Of an older AMQP; a few clients still send it."""

    spec = Spec(30, 10, Role.CLIENT, replies=("access.request-ok",))
    realm: ShortStr = "/data"
    exclusive: Bit = False
    passive: Bit = True
    active: Bit = True
    write: Bit = True
    read: Bit = True


class AccessRequestOk(Method, frozen=True):
    """A ticket that nobody looks at."""

    spec = Spec(30, 11, Role.SERVER)
    ticket: Short = 1


class ExchangeDeclare(Method, frozen=True):
    """Create an exchange, or check that it is there."""

    spec = Spec(40, 10, Role.CLIENT, replies=("exchange.declare-ok",), leading=("short",))
    exchange: ShortStr = ""
    type: ShortStr = "direct"
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    internal: Bit = False
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


class ExchangeDeclareOk(Method, frozen=True):
    """The exchange is there."""

    spec = Spec(40, 11, Role.SERVER)


class ExchangeDelete(Method, frozen=True):
    """Delete an exchange."""

    spec = Spec(40, 20, Role.CLIENT, replies=("exchange.delete-ok",), leading=("short",))
    exchange: ShortStr = ""
    if_unused: Bit = False
    nowait: Bit = False


class ExchangeDeleteOk(Method, frozen=True):
    """The exchange is gone."""

    spec = Spec(40, 21, Role.SERVER)


class ExchangeBind(Method, frozen=True):
    """Bind an exchange to an exchange (RabbitMQ)."""

    spec = Spec(40, 30, Role.CLIENT, replies=("exchange.bind-ok",), leading=("short",))
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


class ExchangeBindOk(Method, frozen=True):
    """The binding is there (RabbitMQ)."""

    spec = Spec(40, 31, Role.SERVER)


class ExchangeUnbind(Method, frozen=True):
    """Undo `ExchangeBind` (RabbitMQ)."""

    spec = Spec(40, 40, Role.CLIENT, replies=("exchange.unbind-ok",), leading=("short",))
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


class ExchangeUnbindOk(Method, frozen=True):
    """The binding is gone (RabbitMQ; it really is 51, not 41)."""

    spec = Spec(40, 51, Role.SERVER)


class QueueDeclare(Method, frozen=True):
    """Create a queue, or check that it is there."""

    spec = Spec(50, 10, Role.CLIENT, replies=("queue.declare-ok",), leading=("short",))
    queue: ShortStr = ""
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


class QueueDeclareOk(Method, frozen=True):
    """The queue is there."""

    spec = Spec(50, 11, Role.SERVER)
    queue: ShortStr = ""
    message_count: Long = 0
    consumer_count: Long = 0


class QueueBind(Method, frozen=True):
    """Bind a queue to an exchange."""

    spec = Spec(50, 20, Role.CLIENT, replies=("queue.bind-ok",), leading=("short",))
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


class QueueBindOk(Method, frozen=True):
    """The binding is there."""

    spec = Spec(50, 21, Role.SERVER)


class QueuePurge(Method, frozen=True):
    """Throw away all ready messages."""

    spec = Spec(50, 30, Role.CLIENT, replies=("queue.purge-ok",), leading=("short",))
    queue: ShortStr = ""
    nowait: Bit = False


class QueuePurgeOk(Method, frozen=True):
    """They are gone."""

    spec = Spec(50, 31, Role.SERVER)
    message_count: Long = 0


class QueueDelete(Method, frozen=True):
    """Delete a queue."""

    spec = Spec(50, 40, Role.CLIENT, replies=("queue.delete-ok",), leading=("short",))
    queue: ShortStr = ""
    if_unused: Bit = False
    if_empty: Bit = False
    nowait: Bit = False


class QueueDeleteOk(Method, frozen=True):
    """The queue is gone."""

    spec = Spec(50, 41, Role.SERVER)
    message_count: Long = 0


class QueueUnbind(Method, frozen=True):
    """Undo `QueueBind`."""

    spec = Spec(50, 50, Role.CLIENT, replies=("queue.unbind-ok",), leading=("short",))
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    arguments: Table = field(default_factory=dict)


class QueueUnbindOk(Method, frozen=True):
    """The binding is gone."""

    spec = Spec(50, 51, Role.SERVER)


class BasicQos(Method, frozen=True):
    """How many deliveries may be open at a time."""

    spec = Spec(60, 10, Role.CLIENT, replies=("basic.qos-ok",))
    prefetch_size: Long = 0
    prefetch_count: Short = 0
    global_: Bit = False


class BasicQosOk(Method, frozen=True):
    """The new prefetch holds."""

    spec = Spec(60, 11, Role.SERVER)


class BasicConsume(Method, frozen=True):
    """Start a consumer."""

    spec = Spec(60, 20, Role.CLIENT, replies=("basic.consume-ok",), leading=("short",))
    queue: ShortStr = ""
    consumer_tag: ShortStr = ""
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    nowait: Bit = False
    arguments: Table = field(default_factory=dict)


class BasicConsumeOk(Method, frozen=True):
    """The consumer is there."""

    spec = Spec(60, 21, Role.SERVER)
    consumer_tag: ShortStr = ""


class BasicCancel(Method, frozen=True):
    """Stop a consumer; from the server: its queue is gone (RabbitMQ)."""

    spec = Spec(60, 30, Role.EITHER, replies=("basic.cancel-ok",))
    consumer_tag: ShortStr = ""
    nowait: Bit = False


class BasicCancelOk(Method, frozen=True):
    """The consumer is gone."""

    spec = Spec(60, 31, Role.EITHER)
    consumer_tag: ShortStr = ""


class BasicPublish(Method, frozen=True):
    """A message for an exchange."""

    spec = Spec(60, 40, Role.CLIENT, content=True, leading=("short",))
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    mandatory: Bit = False
    immediate: Bit = False


class BasicReturn(Method, frozen=True):
    """A mandatory message that nobody wanted."""

    spec = Spec(60, 50, Role.SERVER, content=True)
    reply_code: Short = 312
    reply_text: Text = "NO_ROUTE"
    exchange: ShortStr = ""
    routing_key: ShortStr = ""


class BasicDeliver(Method, frozen=True):
    """A message for a consumer."""

    spec = Spec(60, 60, Role.SERVER, content=True)
    consumer_tag: ShortStr = ""
    delivery_tag: LongLong = 0
    redelivered: Bit = False
    exchange: ShortStr = ""
    routing_key: ShortStr = ""


class BasicGet(Method, frozen=True):
    """Ask for one message."""

    spec = Spec(60, 70, Role.CLIENT, replies=("basic.get-ok", "basic.get-empty"), leading=("short",))
    queue: ShortStr = ""
    no_ack: Bit = False


class BasicGetOk(Method, frozen=True):
    """Here it is, and how many are left."""

    spec = Spec(60, 71, Role.SERVER, content=True)
    delivery_tag: LongLong = 0
    redelivered: Bit = False
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    message_count: Long = 0


class BasicGetEmpty(Method, frozen=True):
    """There is none."""

    spec = Spec(60, 72, Role.SERVER, trailing=("shortstr",))


class BasicAck(Method, frozen=True):
    """A delivery is done; from the server: a publish is safe."""

    spec = Spec(60, 80, Role.EITHER)
    delivery_tag: LongLong = 0
    multiple: Bit = False


class BasicReject(Method, frozen=True):
    """A delivery is refused."""

    spec = Spec(60, 90, Role.CLIENT)
    delivery_tag: LongLong = 0
    requeue: Bit = True


class BasicRecoverAsync(Method, frozen=True):
    """`BasicRecover` without an answer; long deprecated."""

    spec = Spec(60, 100, Role.CLIENT)
    requeue: Bit = False


class BasicRecover(Method, frozen=True):
    """Give all open deliveries back."""

    spec = Spec(60, 110, Role.CLIENT, replies=("basic.recover-ok",))
    requeue: Bit = False


class BasicRecoverOk(Method, frozen=True):
    """They are back."""

    spec = Spec(60, 111, Role.SERVER)


class BasicNack(Method, frozen=True):
    """Deliveries are refused; from the server: a publish is lost (RabbitMQ)."""

    spec = Spec(60, 120, Role.EITHER)
    delivery_tag: LongLong = 0
    multiple: Bit = False
    requeue: Bit = True


class ConfirmSelect(Method, frozen=True):
    """Confirm every publish from now on (RabbitMQ)."""

    spec = Spec(85, 10, Role.CLIENT, replies=("confirm.select-ok",))
    nowait: Bit = False


class ConfirmSelectOk(Method, frozen=True):
    """Publishes are being confirmed (RabbitMQ)."""

    spec = Spec(85, 11, Role.SERVER)


class TxSelect(Method, frozen=True):
    """Make the channel transactional."""

    spec = Spec(90, 10, Role.CLIENT, replies=("tx.select-ok",))


class TxSelectOk(Method, frozen=True):
    """It is."""

    spec = Spec(90, 11, Role.SERVER)


class TxCommit(Method, frozen=True):
    """Do all that was asked since the last commit."""

    spec = Spec(90, 20, Role.CLIENT, replies=("tx.commit-ok",))


class TxCommitOk(Method, frozen=True):
    """It is done."""

    spec = Spec(90, 21, Role.SERVER)


class TxRollback(Method, frozen=True):
    """Forget all that was asked since the last commit."""

    spec = Spec(90, 30, Role.CLIENT, replies=("tx.rollback-ok",))


class TxRollbackOk(Method, frozen=True):
    """It is forgotten."""

    spec = Spec(90, 31, Role.SERVER)


ALL: Final[tuple[type[Method], ...]] = (
    ConnectionStart,
    ConnectionStartOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionBlocked,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    ChannelOpen,
    ChannelOpenOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelClose,
    ChannelCloseOk,
    AccessRequest,
    AccessRequestOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueBind,
    QueueBindOk,
    QueuePurge,
    QueuePurgeOk,
    QueueDelete,
    QueueDeleteOk,
    QueueUnbind,
    QueueUnbindOk,
    BasicQos,
    BasicQosOk,
    BasicConsume,
    BasicConsumeOk,
    BasicCancel,
    BasicCancelOk,
    BasicPublish,
    BasicReturn,
    BasicDeliver,
    BasicGet,
    BasicGetOk,
    BasicGetEmpty,
    BasicAck,
    BasicReject,
    BasicRecoverAsync,
    BasicRecover,
    BasicRecoverOk,
    BasicNack,
    ConfirmSelect,
    ConfirmSelectOk,
    TxSelect,
    TxSelectOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
)
METHODS: Final[Mapping[int, type[Method]]] = {method.spec.number: method for method in ALL}
BY_NAME: Final[Mapping[str, type[Method]]] = {method.wire_name(): method for method in ALL}
