"""How does everything but the messages get from one broker to another?

Definitions are RabbitMQ's: what is exported here can be imported there, and the other way round. An import adds and
changes, and deletes nothing; a queue or exchange that is there already stays as it is. Users and permissions come in
together or not at all; of the rest, what stands before the first mistake has come in, as in RabbitMQ.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from redrive._version import __version__
from redrive.amqp.errors import AmqpError
from redrive.broker.arguments import Declared, check_exchange
from redrive.broker.core import RABBITMQ_VERSION
from redrive.broker.exchanges import Exchange
from redrive.broker.management.answers import NO_CONTENT, Answer, Json, RefusalError, bad_request
from redrive.broker.management.ask import Ask, boolean, text
from redrive.broker.management.limits import set_vhost_limits
from redrive.broker.management.parameters import (
    LIMITS,
    OPERATOR_POLICY,
    set_parameter,
    vhost_parameters,
)
from redrive.broker.management.people import describe, described, permissions_changed
from redrive.broker.management.policies import load_policy
from redrive.broker.management.tables import shown, table
from redrive.broker.management.views import queue_arguments
from redrive.broker.queue import Queue
from redrive.broker.vhost import PREDECLARED, VHost
from redrive.errors import SettingsError

_DESCRIBES: Final = frozenset({"metadata", "description", "tags", "default_queue_type"})  # of a virtual host
_INTERNAL: Final = frozenset(
    {"internal_cluster_id"}
)  # global parameters that belong to the cluster they come from


# --- out -----------------------------------------------------------------------------------------------------


def export_all(ask: Ask) -> Answer:
    """Everything."""
    ask.need("administrator")
    broker = ask.broker
    vhosts = list(broker.vhosts.values())
    body: Json = {
        **_header("cluster", f"Definitions of cluster '{broker.cluster_name}'"),
        "original_cluster_name": broker.cluster_name,
        **broker.users.export(),
        "vhosts": [_vhost(vhost) for vhost in vhosts],
        "topic_permissions": [],
        "global_parameters": [
            {"name": name, "value": value} for name, value in broker.global_parameters.items()
        ],
    }
    for section, rows in _SECTIONS.items():
        body[section] = [{"vhost": vhost.name, **row} for vhost in vhosts for row in rows(vhost)]
    return _download(ask, body)


def export_vhost(ask: Ask) -> Answer:
    """What is in one virtual host, without its name, so that it can go into another one."""
    ask.need("administrator")
    vhost = ask.broker.vhosts.get(ask.params["vhost"])
    if vhost is None:
        raise bad_request("vhost_not_found")
    described = _vhost(vhost)
    body: Json = {
        **_header("single_virtual_host", f"Definitions of virtual host '{vhost.name}'"),
        "original_vhost_name": described.pop("name"),
        **described,
        **{section: list(rows(vhost)) for section, rows in _SECTIONS.items()},
    }
    return _download(ask, body)


def _header(kind: str, explanation: str) -> Json:
    return {
        "rabbit_version": RABBITMQ_VERSION,
        "rabbitmq_version": RABBITMQ_VERSION,
        "product_name": "redrive",
        "product_version": __version__,
        "rabbitmq_definition_format": kind,
        "explanation": explanation,
    }


def _vhost(vhost: VHost) -> Json:
    """A virtual host; what is in `metadata` also stands outside of it, for versions before 4.3."""
    return {
        "name": vhost.name,
        **vhost.metadata,
        "metadata": dict(vhost.metadata),
        "limits": dict(vhost.limits),
    }


def _download(ask: Ask, body: Json) -> Answer:
    name = ask.query.get("download", "").replace('"', "").replace("\r", "").replace("\n", "")
    headers = {"Content-Disposition": f'attachment; filename="{name}"'} if name.isascii() and name else {}
    return Answer(body=body, headers=headers)


def _queues(vhost: VHost) -> Iterator[Json]:
    for queue in vhost.queues.values():
        if queue.owner is None:
            yield {
                "name": queue.name,
                "type": queue.declared.queue_type,
                "durable": queue.durable,
                "auto_delete": queue.auto_delete,
                "arguments": queue_arguments(queue),
            }


def _exchanges(vhost: VHost) -> Iterator[Json]:
    for exchange in vhost.exchanges.values():
        if exchange.name not in PREDECLARED:
            yield {
                "name": exchange.name,
                "type": exchange.kind,
                "durable": exchange.durable,
                "auto_delete": exchange.auto_delete,
                "internal": exchange.internal,
                "arguments": shown(exchange.arguments),
            }


def _bindings(vhost: VHost) -> Iterator[Json]:
    for source in vhost.exchanges.values():
        for binding in source.bindings():
            target: Any = binding.destination
            if getattr(target, "owner", None) is None:
                yield {
                    "source": source.name,
                    "destination": target.name,
                    "destination_type": "queue" if isinstance(target, Queue) else "exchange",
                    "routing_key": binding.key,
                    "arguments": shown(binding.arguments),
                }


def _policies(vhost: VHost) -> Iterator[Json]:
    for policy in vhost.policies.to_json():
        yield {name: value for name, value in policy.items() if name != "vhost"}


_SECTIONS: Final = {
    "parameters": vhost_parameters,
    "policies": _policies,
    "queues": _queues,
    "exchanges": _exchanges,
    "bindings": _bindings,
}


_POLICIES: Final = ("parameters", "policies")  # sections that act on queues which exist already


# --- in ------------------------------------------------------------------------------------------------------


def import_all(ask: Ask) -> Answer:
    """Everything that the body has."""
    ask.need("administrator")
    body = ask.json()
    rows = _rows(body, "vhosts")
    _check_vhosts(ask, body, {*(text(row, "name") for row in rows), *ask.broker.vhosts})
    vhosts = [
        (row["name"], described(row) if _DESCRIBES & row.keys() else {}, row.get("limits")) for row in rows
    ]
    for name, metadata, limits in vhosts:
        made = ask.broker.add_vhost(name)
        describe(made, metadata)
        if limits:
            set_vhost_limits(made, limits)
    try:
        ask.broker.users.load(body)
    except SettingsError as error:
        raise bad_request(str(error)) from None
    finally:
        permissions_changed(ask)
    for row in _rows(body, "global_parameters"):
        if (name := text(row, "name")) not in _INTERNAL:
            ask.broker.set_global_parameter(name, row.get("value"))
    _load(ask, body, None)
    return NO_CONTENT


def import_vhost(ask: Ask) -> Answer:
    """What the body has for a virtual host, into the one that the path names."""
    ask.need("administrator")
    vhost = ask.vhost()
    _load(ask, ask.json(), vhost)
    return NO_CONTENT


def _rows(body: Json, section: str) -> list[Json]:
    rows = body.get(section, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise bad_request(f"{section} should be a list of objects")
    return rows


def _check_vhosts(ask: Ask, body: Json, known: set[str]) -> None:
    for section in ("permissions", *_SECTIONS):
        for row in _rows(body, section):
            vhost = row.get("vhost")
            if not isinstance(vhost, str) or vhost not in known:
                missing = row.get("vhost", "undefined")
                raise bad_request(f'Please create virtual host "{missing}" prior to importing definitions.')
    if _rows(body, "topic_permissions"):
        ask.broker.log.warning("topic permissions not imported: not supported")


def _load(ask: Ask, body: Json, into: VHost | None) -> None:
    def vhost_of(row: Json) -> VHost:
        return into if into is not None else ask.broker.vhosts[row["vhost"]]

    try:
        _load_policies(ask, body, vhost_of)
    finally:  # what stands before a mistake has come in, and is in force
        for vhost in {vhost_of(row): None for section in _POLICIES for row in _rows(body, section)}:
            ask.apply_policies(vhost)
    _check_queue_limits(body, vhost_of)
    for section, load in (
        ("queues", _load_queue),
        ("exchanges", _load_exchange),
        ("bindings", _load_binding),
    ):
        for row in _rows(body, section):
            try:
                load(ask, vhost_of(row), row)
            except AmqpError as error:
                raise bad_request(error.text) from None


def _load_policies(ask: Ask, body: Json, vhost_of: Callable[[Json], VHost]) -> None:
    for row in _rows(body, "parameters"):
        vhost, component, name = vhost_of(row), row.get("component"), row.get("name")
        if component in (LIMITS, OPERATOR_POLICY):
            where = f' (vhost: "{vhost.name}" / component: "{component}" / key: "{name}")'
            set_parameter(vhost, component, text(row, "name"), row.get("value"), where)
        else:
            ask.broker.log.warning(
                "parameter not imported component=%s name=%s: component not supported",
                component,
                name,
            )
    for row in _rows(body, "policies"):
        vhost = vhost_of(row)
        load_policy(vhost, row, text(row, "name"), where=f' (vhost: "{vhost.name}" key: "{row["name"]}")')


def _check_queue_limits(body: Json, vhost_of: Callable[[Json], VHost]) -> None:
    """400 before any queue is made, if a virtual host would have more queues than it may have."""
    new: dict[VHost, set[str]] = {}
    for row in _rows(body, "queues"):
        vhost, name = vhost_of(row), _name(row)
        if name not in vhost.queues:
            new.setdefault(vhost, set()).add(name)
    for vhost, names in new.items():
        limit = vhost.limits.get("max-queues", -1)
        if 0 <= limit < len(vhost.queues) + len(names):
            raise bad_request(
                f'Adding {len(names)} queue(s) to virtual host "{vhost.name}" would exceed the limit of {limit}'
                f" queue(s).\n\nThis virtual host currently has {len(vhost.queues)} queue(s) defined.\n\n"
                "Import aborted!"
            )


def _load_queue(ask: Ask, vhost: VHost, row: Json) -> None:
    name = _name(row)
    if name not in vhost.queues:
        declared = vhost.with_default_type(_declared(row), exclusive=False)
        vhost.declare_queue(name, declared, owner=None, now=ask.now)


def _load_exchange(_ask: Ask, vhost: VHost, row: Json) -> None:
    name = _name(row)
    if name not in vhost.exchanges:
        declared = _declared(row)
        check_exchange(name, vhost.name, declared.type, declared.arguments)
        vhost.declare_exchange(name, declared)


def _load_binding(_ask: Ask, vhost: VHost, row: Json) -> None:
    target: Queue | Exchange
    name = text(row, "destination")
    target = vhost.exchange(name) if row.get("destination_type") == "exchange" else vhost.queue(name)
    if not row.get("source"):
        return  # the default exchange is bound to every queue by itself
    arguments = table(row.get("arguments"), "arguments")
    vhost.bind(vhost.exchange(text(row, "source")), target, text(row, "routing_key", ""), arguments)


def _name(row: Json) -> str:
    name = text(row, "name")
    if not name:
        raise RefusalError(400, "bad_request", "a queue or exchange needs a name")
    return name


def _declared(row: Mapping[str, Any]) -> Declared:
    return Declared(
        boolean(row, "durable"),
        boolean(row, "auto_delete"),
        table(row.get("arguments"), "arguments"),
        type=text(row, "type", "direct"),
        internal=boolean(row, "internal"),
    )
