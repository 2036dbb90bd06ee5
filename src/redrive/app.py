"""How is everything put together?

`App` is what a service author holds: a broker, handlers, options. It makes the transport, the consumer and those who
watch it from the settings, and runs them inside the author's own asyncio program or under `redrive consume`.

    app = App("amqp://localhost")

    @app.consume("orders")
    async def handle(order: Order) -> None: ...

    asyncio.run(app.run())

An option is looked for in this order: `[[sources]]` of the settings (an operator's last word), then the arguments of
`consume`, then `[consume]` of the settings, then the default.
"""

import asyncio
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar

import msgspec

from redrive.clock import Clock, SystemClock
from redrive.consume import (
    Callback,
    ConsumeBreakerOptions,
    ConsumeOptions,
    Consumer,
    Handler,
    Observer,
    Subscription,
    state_directory,
)
from redrive.errors import RedriveError, SettingsError, did_you_mean
from redrive.letters import Headers, HeaderValue, Message
from redrive.letters.redrive import for_handlers
from redrive.rules import Backoff, Classifier, Rule
from redrive.settings import Settings, SourceSettings, load
from redrive.transports import Publication, Source, Target, Transport, open_transport
from redrive.watch.publish_report import PublishReporter

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

F = TypeVar("F", bound=Callable[..., Any])
BROKER_HERE: Final = "amqp://127.0.0.1:5672"  # where the settings name no broker: the one of this machine
# Options of a source that are the transport's; the rest is the consumer's.
_OF_SOURCE = (
    "dead_letter",
    "dead_letter_queue",
    "dead_letter_exchange",
    "dead_letter_routing_key",
    "queue_type",
    "consumer_group",
)


class _Wanted(msgspec.Struct, frozen=True):
    """What `consume` was called with."""

    source: str
    handler: Handler
    given: dict[str, Any]


class App:
    """Handlers on a broker."""

    def __init__(
        self,
        broker: str | Transport | None = None,
        *,
        settings: Settings | None = None,
        rules: Sequence[Rule] = (),
        on_dead_letter: Sequence[Callback] = (),
        observers: Sequence[Observer] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """A broker is a URL or a transport; without one, the settings name it.

        `settings` are read from redrive.toml and the environment where they are not given. `rules` are asked before
        those of the settings. `observers` replaces those who listen by default: metrics, traces and logs.
        """
        self._broker = broker
        self._settings = settings
        self._rules = tuple(rules)
        self._callbacks = tuple(on_dead_letter)
        self._observers = observers
        self._clock = clock or SystemClock()
        self._wanted: list[_Wanted] = []
        self._consumer: Consumer | None = None
        self._transport: Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    # --- handlers ----------------------------------------------------------------------------------------------

    def consume(
        self,
        source: str,
        *,
        prefetch: int | None = None,
        concurrency: int | None = None,
        handler_timeout: timedelta | None = None,
        max_deliveries: int | None = None,
        attempts: int | None = None,
        backoff: Backoff | None = None,
        decoder: Callable[[Any], Any] | None = None,
        dead_letter: Literal["publish", "native"] | None = None,
        dead_letter_queue: str | None = None,
        dead_letter_exchange: str | None = None,
        dead_letter_routing_key: str | None = None,
        queue_type: Literal["quorum", "classic"] | None = None,
        consumer_group: str | None = None,
        best_effort: bool | None = None,
        breaker: ConsumeBreakerOptions | Literal[False] | None = None,
    ) -> Callable[[F], F]:
        """The decorated function handles the messages of this source. The function itself is not changed."""
        given = {name: value for name, value in locals().items() if name not in ("self", "source", "decoder")}

        def register(function: F) -> F:
            options = {name: value for name, value in given.items() if value is not None}
            self._wanted.append(_Wanted(source, Handler.of(function, decoder), options))
            return function

        return register

    def subscriptions(self) -> tuple[Subscription, ...]:
        """Each handler with its source and its options, all settings applied."""
        return tuple(self._subscription(wanted) for wanted in self._wanted)

    def sources(self) -> tuple[Source, ...]:
        """The sources of all handlers, and those that only the settings name."""
        own = tuple(subscription.source for subscription in self.subscriptions())
        names = {source.name for source in own}
        others = (entry for entry in self.settings.sources if entry.name not in names)
        return (*own, *(sources_of(self.settings, entry) for entry in others))

    def _subscription(self, wanted: _Wanted) -> Subscription:
        values = {**_defaults(self.settings), **wanted.given, **_last_word(self.settings, wanted.source)}
        breaker = values.pop("breaker")
        options = ConsumeOptions(
            breaker=breaker if breaker is not False else None,
            shutdown_timeout=self.settings.consume.shutdown_timeout,
            **{name: values[name] for name in values if name not in (*_OF_SOURCE, "prefetch")},
        )
        return Subscription(wanted.handler, _source(wanted.source, values), options)

    # --- what it is made of ------------------------------------------------------------------------------------

    @cached_property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._settings if self._settings is not None else load(None, os.environ)

    def use(self, *, path: Path | None = None, broker: str | None = None) -> None:
        """Settings file and broker from the command line, before the app runs."""
        if path is not None:
            self._settings = load(path, os.environ)
            self.__dict__.pop("settings", None)
        if broker is not None:
            self._broker = broker

    @property
    def broker_url(self) -> str | None:
        """Where the broker is; None for a transport that was given as such."""
        if self._broker is None:
            return self.settings.broker.url or BROKER_HERE
        return self._broker if isinstance(self._broker, str) else None

    @cached_property
    def registry(self) -> "CollectorRegistry":
        """Where Prometheus finds the metrics of this app: `serve_metrics(9100, registry=app.registry)`."""
        from prometheus_client import CollectorRegistry  # noqa: PLC0415  loaded when somebody counts

        return CollectorRegistry()

    def health(self) -> Mapping[str, object]:
        """Whether dead letters can be published: `status` is `ok` or `failing`, with the figures of each queue."""
        from redrive.watch.metrics import Metrics  # noqa: PLC0415  loaded when somebody listens

        found = next((each for each in self.listeners if isinstance(each, Metrics)), None)
        return {"status": "ok", "queues": {}} if found is None else found.health()

    def classifier(self) -> Classifier:
        """What judges errors: the app's own rules, then those of the settings, then the defaults."""
        return Classifier((*self._rules, *self.settings.rules))

    @cached_property
    def listeners(self) -> Sequence[Observer]:
        """Those who hear what happens: metrics, logs, and traces where OpenTelemetry is installed."""
        if self._observers is not None:
            return self._observers
        from redrive.watch.logs import Logs  # noqa: PLC0415  loaded when somebody listens
        from redrive.watch.metrics import Metrics  # noqa: PLC0415

        redactor = self.settings.redactor()
        heard: list[Observer] = [
            Metrics(self.registry, redactor=redactor),
            Logs(redactor=redactor, clock=self._clock),
        ]
        if find_spec("opentelemetry") is not None:
            from redrive.watch.tracing import Tracing  # noqa: PLC0415

            heard.append(Tracing(redactor=redactor))
        return heard

    # --- running -----------------------------------------------------------------------------------------------

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Consume until `stop` is called or the task is cancelled; both end in order.

        `ready` is called when every source is subscribed.
        """
        if self._consumer is not None:
            raise SettingsError("the app is already running; one App can run only once at a time")
        settings = self.settings
        subscriptions = self.subscriptions()
        transport = self._make_transport()
        self._stopped = False
        async with transport, PublishReporter(transport.publish, self._clock) as reporter:
            consumer = Consumer(
                transport,
                subscriptions,
                clock=self._clock,
                classifier=self.classifier(),
                redactor=settings.redactor(),
                observers=(*self.listeners, reporter),
                callbacks=self._callbacks,
                ready=ready,
                state=state_directory(settings.consume.state_directory, os.environ),
            )
            if settings.consume.provision:
                await transport.provision([subscription.source for subscription in subscriptions])
            self._transport, self._consumer = transport, consumer
            try:
                if not self._stopped:
                    with _interrupt_stops(self.stop):
                        await consumer.run()
            finally:
                self._transport = self._consumer = None

    def stop(self) -> None:
        """Come to an end in order; may be called from a signal handler of the loop."""
        self._stopped = True
        if self._consumer is not None:
            self._consumer.stop()

    async def __aenter__(self) -> Self:
        """Run beside the caller; returns when every source is subscribed."""
        ready = asyncio.Event()
        self._task = asyncio.create_task(self.run(ready.set))
        waiting = asyncio.ensure_future(ready.wait())
        await asyncio.wait((self._task, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._task.done():
            self._task.result()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        if self._task is not None:
            task, self._task = self._task, None
            await task

    async def publish(
        self, queue: str, body: Any, headers: dict[str, HeaderValue] | None = None, **fields: Any
    ) -> None:
        """Send a message while the app runs; anything but bytes becomes JSON. Returns when it is durable."""
        if self._transport is None:
            raise SettingsError(
                "the app is not running: publish inside 'async with app' or while app.run() runs"
            )
        if not isinstance(body, bytes):
            fields.setdefault("content_type", "application/json")
            body = msgspec.json.encode(body)
        message = Message(body=body, headers=for_handlers(Headers(headers or {})), **fields)
        for error in await self._transport.publish([Publication(message, Target(name=queue))]):
            if error is not None:
                raise error

    def _make_transport(self) -> Transport:
        if self._broker is not None and not isinstance(self._broker, str):
            return self._broker
        return open_transport(self._broker or self.settings.broker.url or BROKER_HERE, self._clock)


@contextmanager
def _interrupt_stops(stop: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C stop in order, and raise `KeyboardInterrupt` afterwards.

    Only where Python itself would raise it, in the middle of whatever runs: that may be a handler, where it would be a
    failed attempt of a message. `asyncio.run` and `redrive consume` handle the signal themselves.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    loop = asyncio.get_running_loop()
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        loop.remove_signal_handler(signal.SIGINT)  # the second one is raised where it comes
        stop()

    try:
        loop.add_signal_handler(signal.SIGINT, interrupt)
    except NotImplementedError:  # no signals on this loop
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    if interrupted:
        raise KeyboardInterrupt


def sources_of(settings: Settings, entry: SourceSettings) -> Source:
    """A source that the settings name."""
    return _source(entry.name, {**_defaults(settings), **_last_word(settings, entry.name)})


def _source(name: str, values: dict[str, Any]) -> Source:
    own = {key: values[key] for key in _OF_SOURCE if key in values}
    return Source(name=name, window=values["prefetch"], max_deliveries=values["max_deliveries"], **own)


def _defaults(settings: Settings) -> dict[str, Any]:
    """The options of every source, as the sections of the settings have them."""
    consume, breaker = settings.consume, settings.consume.breaker
    return {
        "prefetch": consume.prefetch,
        "concurrency": consume.concurrency,
        "handler_timeout": consume.handler_timeout,
        "dead_letter": consume.dead_letter,
        "best_effort": consume.best_effort,
        "max_deliveries": consume.max_deliveries,
        "attempts": consume.attempts,
        "backoff": consume.backoff,
        "breaker": breaker.enabled
        and ConsumeBreakerOptions(
            failure_rate=breaker.failure_rate,
            window=breaker.window,
            pause=breaker.pause,
            max_pause=breaker.max_pause,
        ),
    }


def _last_word(settings: Settings, source: str) -> dict[str, Any]:
    """The options of this source in `[[sources]]`, without those that only a server uses."""
    entry = next((entry for entry in settings.sources if entry.name == source), None)
    values = {} if entry is None else msgspec.structs.asdict(entry)
    unused = ("name", "redrive_rate")
    return {name: value for name, value in values.items() if name not in unused and value is not None}


def load_app(name: str) -> App:
    """The app that `module:attribute` names; `module` alone means its `app`."""
    module_name, _, attribute = name.partition(":")
    attribute = attribute or "app"
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except RedriveError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise SettingsError(
                f"module '{module_name}' was not found; run the command in a directory from which it "
                "can be imported"
            ) from None
        raise SettingsError(
            f"module '{module_name}' imports '{error.name}', which is not installed"
        ) from error
    except Exception as error:
        raise SettingsError(
            f"module '{module_name}' cannot be imported: {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, attribute, None)
    if found is None:
        apps = [key for key, value in vars(module).items() if isinstance(value, App)]
        hint = did_you_mean(attribute, apps) or (f"; it has {', '.join(apps)}" if apps else "")
        raise SettingsError(f"module '{module_name}' has no '{attribute}'{hint}")
    if not isinstance(found, App):
        raise SettingsError(f"'{module_name}:{attribute}' is a {type(found).__name__}, not an App")
    return found
