"""What does each method that is not hot do?

One function per method, `(channel, method) -> None`, found by the method's type in `HANDLERS`. A handler checks
permissions first, then acts, then answers; what it raises is told to the client and closes the channel or, for a
`HardError`, the connection.
"""

import secrets
from collections.abc import Callable
from typing import Any, Final

from redrive.amqp import methods as m
from redrive.amqp.errors import HardError, ReplyCode, SoftError
from redrive.broker.arguments import Declared, check_exchange, check_server_named, consumer_arguments
from redrive.broker.channel import Channel, Transaction
from redrive.broker.consumer import Consumer, header_of
from redrive.broker.consumer_timeout import settle_late, timeout_of, watch
from redrive.broker.message import PURGE_COST
from redrive.broker.queue import Queue
from redrive.broker.vhost import PREDECLARED, REPLY_TO

_RESERVED: Final = "amq."


def _answer(channel: Channel, method: Any, reply: m.Method) -> None:
    if not getattr(method, "nowait", False):
        channel.session.send(reply, channel.number)


# --- exchanges -----------------------------------------------------------------------------------------------


def exchange_declare(channel: Channel, method: m.ExchangeDeclare) -> None:
    """Make an exchange, or see whether it is there."""
    session, name = channel.session, _one_line(method.exchange)
    vhost = session.vhost
    if method.passive:
        _no_default(name)
        session.check_any("exchange", name)
        vhost.exchange(name)
        _answer(channel, method, m.ExchangeDeclareOk())
        return
    _no_default(name)
    session.check("configure", "exchange", name)
    alternate = check_exchange(name, vhost.name, method.type, method.arguments)
    if name not in vhost.exchanges:
        if name.startswith(_RESERVED):
            raise SoftError(
                ReplyCode.ACCESS_REFUSED, f"exchange name '{name}' contains reserved prefix 'amq.*'"
            )
        if alternate is not None:
            session.check("read", "exchange", name)
            session.check("write", "exchange", alternate)
    vhost.declare_exchange(
        name,
        Declared(
            method.durable,
            method.auto_delete,
            dict(method.arguments),
            type=method.type,
            internal=method.internal,
        ),
    )
    session.hold_for_durability()
    _answer(channel, method, m.ExchangeDeclareOk())


def exchange_delete(channel: Channel, method: m.ExchangeDelete) -> None:
    """Delete an exchange; one that is not there is as good as deleted."""
    session, name = channel.session, _one_line(method.exchange)
    _no_default(name)
    session.check("configure", "exchange", name)
    if name in PREDECLARED:
        text = f"deletion of system exchange '{name}' in vhost '{session.vhost.name}' not allowed"
        raise SoftError(ReplyCode.ACCESS_REFUSED, text)
    session.vhost.delete_exchange(name, if_unused=method.if_unused)
    session.hold_for_durability()
    _answer(channel, method, m.ExchangeDeleteOk())


def exchange_bind(channel: Channel, method: m.ExchangeBind) -> None:
    """Bind an exchange to an exchange."""
    _check_both_exchanges(channel, method)
    vhost = channel.session.vhost
    source, target = vhost.exchange(method.source), vhost.exchange(method.destination)
    vhost.bind(source, target, method.routing_key, dict(method.arguments))
    channel.session.hold_for_durability()
    _answer(channel, method, m.ExchangeBindOk())


def exchange_unbind(channel: Channel, method: m.ExchangeUnbind) -> None:
    """Unbind an exchange from an exchange; one that does not exist is not an error."""
    _check_both_exchanges(channel, method)
    vhost = channel.session.vhost
    source, target = vhost.exchanges.get(method.source), vhost.exchanges.get(method.destination)
    if source is not None and target is not None:
        vhost.unbind(source, target, method.routing_key, dict(method.arguments))
    channel.session.hold_for_durability()
    _answer(channel, method, m.ExchangeUnbindOk())


def _check_both_exchanges(channel: Channel, method: m.ExchangeBind | m.ExchangeUnbind) -> None:
    session = channel.session
    _no_default(method.destination)
    _no_default(method.source)
    session.check("write", "exchange", method.destination)
    session.check("read", "exchange", method.source)


def _no_default(name: str) -> None:
    if not name:
        raise SoftError(ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange")


# --- queues --------------------------------------------------------------------------------------------------


def queue_declare(channel: Channel, method: m.QueueDeclare) -> None:
    """Make a queue, or see whether it is there."""
    session, vhost = channel.session, channel.session.vhost
    name = _one_line(method.queue)
    if name == REPLY_TO or name.startswith(REPLY_TO + "."):
        _check_replies(channel, name)
        _answer(channel, method, m.QueueDeclareOk(name, 0, 1))
        return
    if method.passive:
        session.check_any("queue", name)
        queue = session.queue(name)
        queue.idle_since = session.now
        _declared(channel, method, queue)
        return
    if not name:
        check_server_named(method.arguments)
        name = f"amq.gen-{secrets.token_urlsafe(16)}"
    elif name.startswith(_RESERVED) and name not in vhost.queues:
        raise SoftError(ReplyCode.ACCESS_REFUSED, f"queue name '{name}' contains reserved prefix 'amq.*'")
    session.check("configure", "queue", name)
    dead_letters = method.arguments.get("x-dead-letter-exchange")
    if isinstance(dead_letters, str) and name not in vhost.queues and session.broker.features.dlx:
        session.check("read", "queue", name)
        session.check("write", "exchange", dead_letters)
    vhost.check_queue_limit(name)
    declared = Declared(method.durable, method.auto_delete, dict(method.arguments))
    session.has_exclusive_queues |= method.exclusive
    queue = vhost.declare_queue(
        name,
        vhost.with_default_type(declared, exclusive=method.exclusive),
        owner=session if method.exclusive else None,
        now=session.now,
    )
    if queue.durable and queue.owner is None:
        session.hold_for_durability()
    _declared(channel, method, queue)


def _declared(channel: Channel, method: m.QueueDeclare, queue: Queue) -> None:
    channel.last_queue = queue.name
    consumers = len(queue.consumers)
    if queue.is_quorum and queue.options.single_active_consumer:
        consumers = min(consumers, 1)  # those that wait do not count
    _answer(channel, method, m.QueueDeclareOk(queue.name, queue.ready, consumers))


def _check_replies(channel: Channel, name: str) -> None:
    """404 unless somebody takes replies under this name."""
    token = name[len(REPLY_TO) + 1 :]
    if token and channel.session.broker.reply_channel(token) is None:
        raise SoftError(ReplyCode.NOT_FOUND, f"no queue '{name}' in vhost '{channel.session.vhost.name}'")


def _queue_name(channel: Channel, name: str) -> str:
    """The name; an empty one means the queue that was last declared on this channel."""
    if name:
        return _one_line(name)
    if channel.last_queue is None:
        raise SoftError(ReplyCode.NOT_FOUND, "no previously declared queue")
    return channel.last_queue


def _one_line(name: str) -> str:
    """RabbitMQ takes line breaks out of names."""
    return name.replace("\r", "").replace("\n", "") if "\r" in name or "\n" in name else name


def queue_bind(channel: Channel, method: m.QueueBind) -> None:
    """Bind a queue to an exchange."""
    queue, exchange, key = _check_queue_and_source(channel, method)
    session = channel.session
    session.vhost.bind(session.vhost.exchange(exchange), session.queue(queue), key, dict(method.arguments))
    channel.session.hold_for_durability()
    _answer(channel, method, m.QueueBindOk())


def queue_unbind(channel: Channel, method: m.QueueUnbind) -> None:
    """Unbind a queue from an exchange; one that does not exist is not an error."""
    queue, exchange, key = _check_queue_and_source(channel, method)
    vhost = channel.session.vhost
    if queue in vhost.queues and exchange in vhost.exchanges:
        target = channel.session.queue(queue)
        vhost.unbind(vhost.exchanges[exchange], target, key, dict(method.arguments))
    channel.session.hold_for_durability()
    _answer(channel, method, m.QueueUnbindOk())


def _check_queue_and_source(channel: Channel, method: m.QueueBind | m.QueueUnbind) -> tuple[str, str, str]:
    """The names of queue and exchange, which the user may bind, and the routing key."""
    session = channel.session
    name, key = _queue_name(channel, method.queue), method.routing_key
    if not method.queue:
        key = key or name
    session.check("write", "queue", name)
    exchange = _one_line(method.exchange)
    _no_default(exchange)
    session.check("read", "exchange", exchange)
    return name, exchange, key


def queue_purge(channel: Channel, method: m.QueuePurge) -> None:
    """Drop what is ready."""
    session = channel.session
    name = _queue_name(channel, method.queue)
    session.check("read", "queue", name)
    count = session.queue(name).purge()
    session.broker.cost += PURGE_COST * count
    session.hold_for_durability()
    _answer(channel, method, m.QueuePurgeOk(count))


def queue_delete(channel: Channel, method: m.QueueDelete) -> None:
    """Delete a queue; one that is not there is as good as deleted."""
    session = channel.session
    name = _queue_name(channel, method.queue)
    session.check("configure", "queue", name)
    if name not in session.vhost.queues:
        _answer(channel, method, m.QueueDeleteOk(0))
        return
    queue = session.queue(name)
    where = f"queue '{name}' in vhost '{session.vhost.name}'"
    if queue.is_quorum and (method.if_unused or method.if_empty):
        flag = "if-unused" if method.if_unused else "if-empty"
        text = f"cannot delete {where}. queue.delete operations with {flag} flag set are not supported by quorum queues"
        raise HardError(ReplyCode.NOT_IMPLEMENTED, text)
    if method.if_unused and queue.consumers:
        raise SoftError(ReplyCode.PRECONDITION_FAILED, f"{where} in use")
    if method.if_empty and queue.ready:
        raise SoftError(ReplyCode.PRECONDITION_FAILED, f"{where} not empty")
    count = session.vhost.delete_queue(queue)
    session.hold_for_durability()
    _answer(channel, method, m.QueueDeleteOk(count))


# --- consuming -----------------------------------------------------------------------------------------------


def basic_qos(channel: Channel, method: m.BasicQos) -> None:
    """Set how much may be unsettled for each consumer to come; `global` is ignored, as RabbitMQ 4.3 does."""
    if method.prefetch_size:
        raise HardError(ReplyCode.NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
    channel.consumer_prefetch = method.prefetch_count
    channel.session.send(m.BasicQosOk(), channel.number)


def basic_consume(channel: Channel, method: m.BasicConsume) -> None:
    """A consumer comes."""
    session = channel.session
    name = _queue_name(channel, method.queue)
    tag = method.consumer_tag
    if tag and tag in channel.consumers:
        raise HardError(ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
    tag = tag or f"amq.ctag-{secrets.token_urlsafe(16)}"
    if name == REPLY_TO:
        _consume_replies(channel, method, tag)
        return
    session.check("read", "queue", name)
    queue = session.queue(name)
    options = consumer_arguments(
        name,
        session.vhost.name,
        method.arguments,
        queue_type=queue.declared.queue_type,
        exclusive=method.exclusive,
    )
    where = f"queue '{name}' in vhost '{session.vhost.name}'"
    alone = method.exclusive and (queue.consumers or queue.options.single_active_consumer)
    if (queue.exclusive_consumer or alone) and not queue.is_quorum:  # quorum queues do not enforce it
        raise SoftError(ReplyCode.ACCESS_REFUSED, f"{where} in exclusive use")
    consumer = Consumer(
        channel,
        queue,
        tag,
        no_ack=method.no_ack,
        exclusive=method.exclusive,
        priority=options.priority,
        prefetch=channel.consumer_prefetch,
        arguments=dict(method.arguments),
        timeout=timeout_of(queue, options.timeout),
    )
    channel.consumers[tag] = consumer
    _answer(channel, method, m.BasicConsumeOk(tag))
    queue.add_consumer(consumer)
    watch(queue, consumer.timeout, session.now)
    session.broker.mark(queue)


def _consume_replies(channel: Channel, method: m.BasicConsume, tag: str) -> None:
    if not method.no_ack:
        raise SoftError(ReplyCode.PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if channel.reply_consumer is not None:
        raise SoftError(ReplyCode.PRECONDITION_FAILED, "reply consumer already set")
    channel.reply_consumer = tag
    _answer(channel, method, m.BasicConsumeOk(tag))


def basic_cancel(channel: Channel, method: m.BasicCancel) -> None:
    """A consumer goes; what it has stays unsettled."""
    consumer = channel.consumers.get(method.consumer_tag)
    if consumer is not None:
        channel.drop_consumer(consumer)
    elif channel.reply_consumer == method.consumer_tag:
        channel.reply_consumer = None
    _answer(channel, method, m.BasicCancelOk(method.consumer_tag))
    if consumer is not None:
        channel.session.vhost.consumer_left(consumer.queue)


def basic_get(channel: Channel, method: m.BasicGet) -> None:
    """One message, if there is one."""
    session = channel.session
    name = _queue_name(channel, method.queue)
    session.check("read", "queue", name)
    queue = session.queue(name)
    queue.idle_since = session.now
    entry = queue.take(session.now)
    if entry is None:
        queue.stats.got_nothing += 1
        session.send(m.BasicGetEmpty(), channel.number)
        return
    queue.stats.got += 1
    queue.stats.redelivered += entry.redelivered
    message = entry.message
    session.broker.load(message)
    if method.no_ack:
        tag = channel.next_tag
        channel.next_tag += 1
        queue.stats.got_no_ack += 1
        queue.ground.forget(queue, entry)
    else:
        tag = channel.add_unacked(entry, queue, session.now)
        watch(queue, timeout_of(queue), session.now)
    exchange, key, header = message.exchange, message.keys[0], header_of(queue, entry)
    channel.send_content(m.BasicGetOk(tag, entry.redelivered, exchange, key, queue.ready), message, header)


def basic_recover(channel: Channel, method: m.BasicRecover | m.BasicRecoverAsync) -> None:
    """Everything unsettled goes back."""
    if not method.requeue:
        raise HardError(ReplyCode.NOT_IMPLEMENTED, "requeue=false")
    settle_late(channel, 0, multiple=True, verdict="requeue")
    channel.settle_all(list(channel.unacked), "requeue")
    if isinstance(method, m.BasicRecover):
        channel.session.send(m.BasicRecoverOk(), channel.number)


# --- modes of a channel --------------------------------------------------------------------------------------


def channel_flow(channel: Channel, method: m.ChannelFlow) -> None:
    """RabbitMQ never stops for a client, and says so."""
    if not method.active:
        raise HardError(ReplyCode.NOT_IMPLEMENTED, "active=false")
    channel.session.send(m.ChannelFlowOk(True), channel.number)


def confirm_select(channel: Channel, method: m.ConfirmSelect) -> None:
    """Publishes are answered from now on."""
    if channel.transaction is not None:
        raise SoftError(ReplyCode.PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    channel.confirms = True
    _answer(channel, method, m.ConfirmSelectOk())


def tx_select(channel: Channel, _method: m.TxSelect) -> None:
    """Publishes and settlements wait for a commit from now on."""
    if channel.confirms:
        raise SoftError(ReplyCode.PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    channel.transaction = channel.transaction or Transaction()
    channel.session.send(m.TxSelectOk(), channel.number)


def tx_commit(channel: Channel, _method: m.TxCommit) -> None:
    """Carry out the publishes, then the settlements."""
    transaction = _end_transaction(channel)
    refused = False
    for queues, message, facts, mandatory in transaction.publishes:
        refused = not channel.enqueue(queues, message, facts, mandatory=mandatory) or refused
    for tags, verdict in transaction.settles:
        channel.settle_all(tags, verdict)
    channel.transaction = Transaction()
    if refused:
        raise SoftError(ReplyCode.PRECONDITION_FAILED, "partial tx completion")
    channel.session.hold_for_durability()
    channel.session.send(m.TxCommitOk(), channel.number)


def tx_rollback(channel: Channel, _method: m.TxRollback) -> None:
    """Nothing of it has happened; what was delivered is unsettled again."""
    _end_transaction(channel)
    channel.transaction = Transaction()
    channel.session.send(m.TxRollbackOk(), channel.number)


def _end_transaction(channel: Channel) -> Transaction:
    transaction = channel.end_transaction()
    if transaction is None:
        raise SoftError(ReplyCode.PRECONDITION_FAILED, "channel is not transactional")
    return transaction


def access_request(channel: Channel, _method: m.AccessRequest) -> None:
    """A relic of AMQP 0-8: granted."""
    channel.session.send(m.AccessRequestOk(1), channel.number)


HANDLERS: Final[dict[type[m.Method], Callable[[Channel, Any], None]]] = {
    m.ExchangeDeclare: exchange_declare,
    m.ExchangeDelete: exchange_delete,
    m.ExchangeBind: exchange_bind,
    m.ExchangeUnbind: exchange_unbind,
    m.QueueDeclare: queue_declare,
    m.QueueBind: queue_bind,
    m.QueueUnbind: queue_unbind,
    m.QueuePurge: queue_purge,
    m.QueueDelete: queue_delete,
    m.BasicQos: basic_qos,
    m.BasicConsume: basic_consume,
    m.BasicCancel: basic_cancel,
    m.BasicGet: basic_get,
    m.BasicRecover: basic_recover,
    m.BasicRecoverAsync: basic_recover,
    m.ChannelFlow: channel_flow,
    m.ConfirmSelect: confirm_select,
    m.TxSelect: tx_select,
    m.TxCommit: tx_commit,
    m.TxRollback: tx_rollback,
    m.AccessRequest: access_request,
}
