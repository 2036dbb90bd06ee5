"""How are queues, exchanges and bindings shown, made and deleted?

Making and deleting go through the handlers of AMQP (`acting`), so permissions and refusals are the same on both ways.
"""

from collections.abc import Iterable
from functools import partial
from urllib.parse import quote, unquote

from redrive.amqp import methods as m
from redrive.amqp.errors import SHORTSTR_MAX
from redrive.broker import handlers
from redrive.broker.exchanges import Exchange
from redrive.broker.management.acting import acting
from redrive.broker.management.answers import NO_CONTENT, Answer, Json, bad_request, no_such_object, put
from redrive.broker.management.ask import Ask, boolean, text
from redrive.broker.management.lists import Row, listed, one
from redrive.broker.management.tables import table
from redrive.broker.management.views import (
    DEFAULT_EXCHANGE,
    bindings_of,
    default_binding,
    exchange_bindings,
    exchange_view,
    node_of,
    properties_key,
    queue_details,
    queue_row,
    queue_view,
)
from redrive.broker.queue import Queue
from redrive.broker.vhost import VHost


def check_name(kind: str, name: str) -> str:
    """A name that AMQP can carry."""
    size = len(name.encode())
    if size > SHORTSTR_MAX:
        raise bad_request(f"{kind} should be less than 255 bytes, actually was {size}\n")
    return name


def exchange_name(name: str) -> str:
    """The name of an exchange in a path: the default one is empty or `amq.default`."""
    return "" if name == DEFAULT_EXCHANGE else name


# --- queues --------------------------------------------------------------------------------------------------


def queues(ask: Ask) -> Answer:
    """All queues."""
    rows = (
        Row((vhost.name, queue.name), queue.name, partial(queue_row, ask, vhost, queue))
        for vhost in ask.vhosts()
        for queue in vhost.queues.values()
    )
    return listed(ask, rows)


def detailed_queues(ask: Ask) -> Answer:
    """All queues with all their fields, also those that have no value."""
    rows = (
        Row((vhost.name, queue.name), queue.name, partial(queue_view, ask, vhost, queue))
        for vhost in ask.vhosts()
        for queue in vhost.queues.values()
    )
    return listed(ask, rows)


def quorum_status(ask: Ask) -> Answer:
    """The members of a quorum queue: this node leads it alone."""
    _, found = named_queue(ask)
    if found.declared.queue_type != "quorum":
        return Answer(503, {"status": "failed", "reason": "classic_queue_not_supported"})
    return Answer(body=[{"Node Name": node_of(ask), "Raft State": "leader", "Membership": "voter"}])


def queue_action(ask: Ask) -> Answer:
    """Actions on a queue: RabbitMQ 4 has none left."""
    named_queue(ask)
    raise bad_request(["unknown", ask.json("action")["action"]])


def named_queue(ask: Ask) -> tuple[VHost, Queue]:
    """The queue that the path names, or 404."""
    vhost = ask.vhost()
    queue = vhost.queues.get(ask.name)
    if queue is None:
        raise no_such_object()
    return vhost, queue


def queue(ask: Ask) -> Answer:
    """One queue."""
    return one(ask, queue_details(ask, *named_queue(ask)))


def put_queue(ask: Ask) -> Answer:
    """Declare a queue."""
    vhost, body = ask.vhost(), ask.json()
    existed = ask.name in vhost.queues
    method = m.QueueDeclare(
        queue=check_name("queue", ask.name),
        durable=boolean(body, "durable"),
        auto_delete=boolean(body, "auto_delete"),
        nowait=True,
        arguments=table(body.get("arguments"), "arguments"),
    )
    if not method.queue:
        raise no_such_object()
    with acting(ask, vhost) as channel:
        handlers.queue_declare(channel, method)
    return put(existed=existed)


def delete_queue(ask: Ask) -> Answer:
    """Delete a queue; `if-empty` and `if-unused` hold it back."""
    vhost, found = named_queue(ask)
    method = m.QueueDelete(
        queue=found.name, if_unused=ask.flag("if-unused"), if_empty=ask.flag("if-empty"), nowait=True
    )
    with acting(ask, vhost) as channel:
        handlers.queue_delete(channel, method)
    return NO_CONTENT


def purge_queue(ask: Ask) -> Answer:
    """Drop what is ready."""
    vhost, found = named_queue(ask)
    with acting(ask, vhost) as channel:
        handlers.queue_purge(channel, m.QueuePurge(queue=found.name, nowait=True))
    return NO_CONTENT


def queue_bindings(ask: Ask) -> Answer:
    """The bindings that lead to a queue."""
    vhost = ask.vhost()
    rows = [default_binding(vhost, ask.name), *_between(vhost, None, "queue", ask.name)]
    return _binding_list(ask, rows)


# --- exchanges -----------------------------------------------------------------------------------------------


def exchanges(ask: Ask) -> Answer:
    """All exchanges, the default one among them."""
    rows = (
        Row((vhost.name, name), name, partial(exchange_view, vhost, exchange))
        for vhost in ask.vhosts()
        for name, exchange in [("", None), *vhost.exchanges.items()]
    )
    return listed(ask, rows)


def named_exchange(ask: Ask) -> tuple[VHost, Exchange | None]:
    """The exchange that the path names, None for the default one, or 404."""
    vhost, name = ask.vhost(), exchange_name(ask.name)
    if name and name not in vhost.exchanges:
        raise no_such_object()
    return vhost, vhost.exchanges.get(name)


def exchange(ask: Ask) -> Answer:
    """One exchange."""
    return one(ask, exchange_view(*named_exchange(ask)) | {"incoming": [], "outgoing": []})


def put_exchange(ask: Ask) -> Answer:
    """Declare an exchange."""
    vhost, body = ask.vhost(), ask.json()
    existed = ask.name in vhost.exchanges
    method = m.ExchangeDeclare(
        exchange=check_name("exchange", exchange_name(ask.name)),
        type=text(body, "type", "direct"),
        durable=boolean(body, "durable"),
        auto_delete=boolean(body, "auto_delete"),
        internal=boolean(body, "internal"),
        nowait=True,
        arguments=table(body.get("arguments"), "arguments"),
    )
    with acting(ask, vhost) as channel:
        handlers.exchange_declare(channel, method)
    return put(existed=existed)


def delete_exchange(ask: Ask) -> Answer:
    """Delete an exchange; `if-unused` holds it back."""
    vhost, found = named_exchange(ask)
    name = found.name if found is not None else ""
    method = m.ExchangeDelete(exchange=name, if_unused=ask.flag("if-unused"), nowait=True)
    with acting(ask, vhost) as channel:
        handlers.exchange_delete(channel, method)
    return NO_CONTENT


def exchange_sources(ask: Ask) -> Answer:
    """The bindings from an exchange."""
    vhost = ask.vhost()
    return _binding_list(ask, _from(vhost, ask.name))


def exchange_targets(ask: Ask) -> Answer:
    """The bindings that lead to an exchange."""
    return _binding_list(ask, _between(ask.vhost(), None, "exchange", ask.name))


# --- bindings ------------------------------------------------------------------------------------------------


def bindings(ask: Ask) -> Answer:
    """All bindings."""
    return _binding_list(ask, [row for vhost in ask.vhosts() for row in bindings_of(vhost)])


def bindings_between(ask: Ask) -> Answer:
    """The bindings from an exchange to a queue or an exchange."""
    return _binding_list(ask, _between_named(ask))


def bind(ask: Ask) -> Answer:
    """Bind; the answer's Location names the binding."""
    vhost, body = ask.vhost(), ask.json()
    source, target = exchange_name(ask.params["source"]), check_name("queue", ask.name)
    key = check_name("routing_key", text(body, "routing_key", ""))
    arguments = table(body.get("arguments"), "arguments")
    with acting(ask, vhost) as channel:
        if ask.params["kind"] == "q":
            handlers.queue_bind(channel, m.QueueBind(target, source, key, True, arguments))
        else:
            handlers.exchange_bind(channel, m.ExchangeBind(target, source, key, True, arguments))
    place = f"{quote(target, safe='')}/{quote(properties_key(key, arguments), safe='')}"
    return Answer(201, headers={"Location": place})


def binding(ask: Ask) -> Answer:
    """One binding."""
    return one(ask, _named_binding(ask))


def unbind(ask: Ask) -> Answer:
    """Take a binding away."""
    vhost, wanted = ask.vhost(), _named_binding(ask)
    source = vhost.exchanges.get(wanted["source"])
    with acting(ask, vhost) as channel:
        # The arguments come from the binding itself: JSON does not know which width a number has.
        key, arguments = wanted["routing_key"], {}
        for made in source.bindings() if source is not None else ():
            same = getattr(made.destination, "name", None) == wanted["destination"]
            if same and properties_key(made.key, made.arguments) == wanted["properties_key"]:
                arguments = dict(made.arguments)
        if wanted["destination_type"] == "queue":
            method = m.QueueUnbind(wanted["destination"], wanted["source"], key, arguments)
            handlers.queue_unbind(channel, method)
        else:
            handlers.exchange_unbind(
                channel, m.ExchangeUnbind(wanted["destination"], wanted["source"], key, True, arguments)
            )
    return NO_CONTENT


def _named_binding(ask: Ask) -> Json:
    wanted = ask.params["key"]
    rows = _between_named(ask)
    # Clients send the key as it is listed, which is encoded already, or encode it like any other part of a path.
    found = next((row for row in rows if row["properties_key"] == wanted), None)
    if found is None:
        found = next((row for row in rows if unquote(row["properties_key"]) == wanted), None)
    if found is None:
        raise no_such_object()
    return found


def _between_named(ask: Ask) -> list[Json]:
    kind = "queue" if ask.params["kind"] == "q" else "exchange"
    return _between(ask.vhost(), ask.params["source"], kind, ask.name)


def _between(vhost: VHost, source: str | None, kind: str, target: str) -> list[Json]:
    """The bindings to a target, from one exchange or, but for the default one, from any."""
    names = list(vhost.exchanges) if source is None else [source]
    return [
        row
        for name in sorted(names)
        for row in _from(vhost, name)
        if row["destination"] == target and row["destination_type"] == kind
    ]


def _from(vhost: VHost, source: str) -> Iterable[Json]:
    if not exchange_name(source):
        return [default_binding(vhost, name) for name in sorted(vhost.queues)]
    found = vhost.exchanges.get(source)
    return [] if found is None else exchange_bindings(vhost, found)


def _binding_list(ask: Ask, rows: Iterable[Json]) -> Answer:
    return listed(ask, [_binding_row(row) for row in rows])


def _binding_row(row: Json) -> Row:
    order = tuple(row[name] for name in ("vhost", "source", "destination", "properties_key"))
    return Row(order, row["source"], lambda: row)
