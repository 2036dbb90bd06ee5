"""Which services does a server run, and how do they hear of each other?

    alarms ◄── collected ── collectors ── died again ──► breakers ◄── resolved ── verdicts
      │ alerts                                              │ recovered
      ▼                                                     ▼
    delivering                           workers ◄─ wake ── awakening      rescuer · retention · confirmer · discovery

Everything is made of the settings here; each part knows only its own business. What they count is asked of them.
"""

import logging
import os
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from redrive.clock import Clock
from redrive.collect import Collector, VerdictCollector
from redrive.collect.reading import Reader
from redrive.errors import RedriveError
from redrive.formats.conventions import with_own
from redrive.letters import LetterState
from redrive.recover.admission import Admission
from redrive.recover.breaker import Breakers, HoldBackOptions
from redrive.recover.change_log import ChangeLogOptions, ChangeLogRetention
from redrive.recover.conditions import Conditions, with_secrets
from redrive.recover.confirmer import Confirmer
from redrive.recover.health import HostHealth
from redrive.recover.rates import RateLimits
from redrive.recover.rescuer import Rescuer
from redrive.recover.retention import Retention, RetentionOptions
from redrive.recover.service import Service
from redrive.recover.worker import Worker, WorkerOptions
from redrive.replay.destinations import Destinations
from redrive.serve.alarms import Alarms, takeover_after
from redrive.serve.awaken import Awakening
from redrive.serve.checks import BrokerCheck, StoreCheck
from redrive.serve.connection import BrokerConnection, LateStore
from redrive.serve.consumer_reports import ConsumerReports
from redrive.serve.discovery import Discovery, Look
from redrive.serve.measures import Measures
from redrive.serve.prerequisite import DependentService, Prerequisite
from redrive.serve.prober import Prober
from redrive.serve.registration import Registration
from redrive.serve.watched import Check, Watched
from redrive.settings import Settings
from redrive.stores.base import Rescued, Store
from redrive.transports.base import Source, Transport
from redrive.transports.probing import Probe
from redrive.watch.alerts.alarm import Alarm
from redrive.watch.alerts.alert import Alert
from redrive.watch.alerts.delivering import Delivering
from redrive.watch.alerts.made import notifiers_of, policy_of, rules_of, told_to, windows_of

Trouble = Callable[[str, Exception], None]
_LOG: Final = logging.getLogger("redrive.server")
_RESCUE_EVERY: Final = timedelta(seconds=15)


class Crew:
    """All services of a server."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        transport: Transport,
        clock: Clock,
        trouble: Trouble,
        sources: Sequence[Source] = (),
        discover: Look | None = None,
        component: str = "broker",
        probe: Probe | None = None,
        broker: str | None = None,
        refused: Callable[[RedriveError], None] = lambda _error: None,
        store_connection: LateStore | None = None,
    ) -> None:
        """`discover` tells the queues of a broker of our own; without it only queues with a name are collected.

        `component` is what alerts call the broker, `probe` asks its management, `broker` is its name. `refused` is
        called if the broker refuses us for good. `store_connection` opens the store, if that may take a while.
        """
        self._settings = settings
        self._store = store
        self._transport = transport
        self._clock = clock
        self._trouble = trouble
        self.broker = broker or transport.kind
        self._server = f"{socket.gethostname()}/{os.getpid()}"  # no two of all that share a store
        self.sources = tuple(sources)
        self.store_connection = store_connection
        self.connection = BrokerConnection(transport, self.sources, clock, trouble=trouble, refused=refused)
        health = settings.health
        self.store_check = StoreCheck(
            store, clock, server=self._server, interval=health.write_interval, max_age=health.max_write_age
        )
        self.broker_check = BrokerCheck(
            transport, self._collected_queues, clock, interval=health.broker_interval
        )
        self.consumer_reports = ConsumerReports(clock)
        self.registration = Registration(
            store, transport, clock, broker=self.broker, server=self._server, adopted=self._adopted
        )
        self._strategy = settings.strategy_options()
        self._conventions = with_own(settings.conventions)
        self._reader = Reader(settings.classifier(), settings.redactor(), self._strategy)
        self.awakening = Awakening(store, clock, self._wake)
        self.breakers = Breakers(clock, _breaker(settings), recovered=self.awakening.recovered)
        self.delivering = Delivering(
            notifiers_of(settings, os.environ),
            clock=clock,
            ended=self._alert_ended,
        )
        self.alarms = self._the_alarms(component, probe)
        self._named_queues = _queues(settings, self.sources)
        self.collectors = {queue: self.a_collector(queue) for queue in self._named_queues}
        self.verdicts = VerdictCollector(
            transport,
            store,
            clock=clock,
            trouble=trouble,
            broker=self.broker,
            batch=settings.collect.batch_size,
            resolved=lambda verdict: self.breakers.succeeded(verdict.source),
            reported=self.consumer_reports.received,
            kept=lambda error: self.store_check.wrote(VerdictCollector.name, error),
        )
        self.conditions = Conditions(
            with_secrets(settings.conditions), clock, held=self._wake, clean=settings.redactor().clean
        )
        self.admission = Admission(
            clock,
            self._strategy,
            self.breakers,
            measure=HostHealth(clock, self.conditions.database_reachable),
            conditions=self.conditions,
            rates=RateLimits(
                clock,
                settings.recover.rate,
                {one.name: one.redrive_rate for one in settings.sources if one.redrive_rate is not None},
            ),
        )
        self.workers = [self._a_worker(number) for number in range(1, settings.recover.workers + 1)]
        self.confirmer = Confirmer(
            store,
            transport,
            clock=clock,
            verdict_timeout=settings.recover.verdict_timeout,
            retry_in=self._strategy.delays[0],
            broker=self.broker,
            find=Destinations(store).consumer_of,
            trouble=trouble,
        )
        self.rescued = {"crashed": 0, "given_up": 0}
        self.rescuer = Rescuer(
            store,
            clock,
            every=min(_RESCUE_EVERY, settings.recover.lease, settings.recover.verdict_timeout),
            retry_in=self._strategy.delays[0],
            max_redrives=self._strategy.max_redrives,
            rescued=self._rescued,
        )
        self.retention = Retention(store, clock, _retention(settings), trouble=trouble)
        self.change_log = ChangeLogRetention(
            store,
            clock,
            ChangeLogOptions(
                age=settings.retention.change_log,
                max_bytes=settings.retention.change_log_bytes,
                every=settings.retention.interval,
            ),
        )
        self.discovery = discover and Discovery(
            discover, tuple(self.collectors), self._discovered, clock, trouble
        )
        self._services = self._all_services()

    def _all_services(self) -> list[Watched]:
        """Every service, in the order in which they are reported.

        Alerts and checks start at once, whatever cannot be reached; the others wait for what they need.
        """
        *store, _ = self.prerequisites
        broker = [*self.prerequisites, self.registration.reached]
        at_once: list[Service] = [self.alarms, self.delivering]
        if self.store_connection is not None:
            at_once.insert(0, self.store_connection)
        if self._settings.conditions:
            at_once.append(self.conditions)
        of_the_store: list[Service] = [self.rescuer, self.retention, self.change_log, self.awakening]
        of_the_broker: list[Service] = [self.verdicts, self.confirmer]
        if self.discovery is not None:
            of_the_broker.append(self.discovery)
        return [
            Watched(self.connection, self._clock, self._named(self.connection.name)),
            *(Watched(service, self._clock) for service in at_once),
            self._dependent(self.store_check, store),
            self._dependent(
                self.broker_check, [self.connection.reached], self._named(self.broker_check.name)
            ),
            self._dependent(self.registration, self.prerequisites, self._named(self.registration.name)),
            *(self._dependent(service, store) for service in of_the_store),
            *(
                self._dependent(collector, broker, checks=self._checks_of(queue))
                for queue, collector in self.collectors.items()
            ),
            *(self._dependent(service, broker, self._named(service.name)) for service in of_the_broker),
            *(
                self._dependent(worker, broker, self._named(f"worker-{number}"))
                for number, worker in enumerate(self.workers, start=1)
            ),
        ]

    def _dependent(
        self,
        service: Service,
        needs: Sequence[Prerequisite],
        name: str | None = None,
        checks: Sequence[Check] = (),
    ) -> Watched:
        dependent = DependentService(service, needs)
        return Watched(dependent, self._clock, name, (dependent.waiting, *checks))

    def _named(self, service: str) -> str:
        """The name under which a service of the broker is reported."""
        return f"{self.broker}/{service}"

    def _checks_of(self, queue: str) -> tuple[Check, ...]:
        return (
            lambda: self.broker_check.missing(queue),
            lambda: self.store_check.failing(self._named(queue)),
        )

    @property
    def prerequisites(self) -> Sequence[Prerequisite]:
        """What has to be reached until the server is ready."""
        store = [] if self.store_connection is None else [self.store_connection.reached]
        return [*store, self.connection.reached]

    @property
    def store_problem(self) -> str | None:
        """Why the store cannot be written; None: it can."""
        late = None if self.store_connection is None else self.store_connection.problem
        return late or self.store_check.problem

    def _is_store_available(self) -> bool:
        return self.store_problem is None

    @property
    def permanent(self) -> Sequence[Watched]:
        """Those that run for as long as the server does."""
        return self._services

    @property
    def services(self) -> Sequence[Watched]:
        """Everybody, those included that come and go with their queues."""
        found = () if self.discovery is None else self.discovery.found.values()
        return (*self._services, *found)

    def _discovered(self, queue: str) -> Watched:
        """A queue that has come back goes on counting where it was."""
        if queue not in self.collectors:
            self.collectors[queue] = self.a_collector(queue)
        collector = self.collectors[queue]
        return Watched(collector, self._clock, checks=self._checks_of(queue))

    def source_of(self, queue: str) -> str:
        """The configured source whose dead letters go to this queue; empty if there is none, or several."""
        names = [source.name for source in self.sources if source.dlq == queue]
        return names[0] if len(names) == 1 else ""

    def a_collector(self, queue: str) -> Collector:
        """A collector of this dead-letter queue, not yet running."""
        return Collector(
            self._transport,
            self._store,
            queue,
            reader=self._reader,
            options=self._strategy,
            clock=self._clock,
            trouble=self._trouble,
            broker=self.broker,
            batch=self._settings.collect.batch_size,
            conventions=self._conventions,
            died_again=lambda source, _failure: self.breakers.died(source),
            collected=lambda letters: self.alarms.collected(queue, letters),
            kept=lambda error: self.store_check.wrote(self._named(queue), error),
        )

    def _alert_ended(self, alert: Alert, name: str) -> None:
        self.alarms.ended(alert, name)

    def _the_alarms(self, component: str, probe: Probe | None) -> Alarms:
        settings = self._settings
        prober = None
        if probe is not None:
            prober = Prober(
                probe,
                lambda: {source.name: source.dlq for source in self.sources},
                self._clock,
                every=settings.alerts.probe_interval,
                component=component,
                trouble=self._trouble,
                collected=self._collected_queues,
                broker=self.broker,
            )
        measures = Measures(
            self._store,
            self._transport,
            lambda: self.services,
            self._collected_queues,
            self._clock,
            component=component,
            dead_letter_queues={source.name: source.dlq for source in self.sources},
            clean=settings.redactor().clean,
            broker=self.broker,
            undeliverable=self._undeliverable,
            redrives=settings.recover.workers > 0,
            prober=prober,
            publish_failures=self.consumer_reports.failures,
            is_store_available=self._is_store_available,
            is_connecting=lambda: self.connection.is_connecting,
        )
        self.measures = measures
        return Alarms(
            self._store,
            Alarm(
                rules_of(settings),
                policy_of(settings),
                windows_of(settings),
                server=_server_name(settings),
                silence=takeover_after(max(settings.alerts.interval, settings.alerts.probe_interval)),
            ),
            measures,
            self._clock,
            every=settings.alerts.interval,
            chosen=lambda alert: told_to(alert, settings.notifiers),
            tell=self.delivering.tell,
            trouble=self._trouble,
            is_store_available=self._is_store_available,
        )

    def _a_worker(self, number: int) -> Worker:
        recover = self._settings.recover
        return Worker(
            self._store,
            self._transport,
            name=f"{self._server}/{number}",
            broker=self.broker,
            strategy=self._strategy,
            options=WorkerOptions(
                batch=recover.batch_size,
                poll=recover.poll_interval,
                lease=recover.lease,
                verdict_timeout=recover.verdict_timeout,
            ),
            clock=self._clock,
            breakers=self.breakers,
            admission=self.admission,
            trouble=self._trouble,
        )

    def _collected_queues(self) -> dict[str, int]:
        """The queues that are collected now, each with what its collector has done."""
        found = () if self.discovery is None else tuple(self.discovery.found)
        return {
            queue: sum(msgspec.structs.astuple(self.collectors[queue].counts))
            for queue in (*self._named_queues, *found)
        }

    def _undeliverable(self) -> dict[str, str]:
        """Sources whose redrives would reach no consumer, with the reason."""
        return {source: reason for (source, _), reason in self.admission.unreachable.items()}

    def _adopted(self, count: int) -> None:
        _LOG.info("letters assigned to broker broker=%s letters=%d", self.broker, count)

    def _wake(self) -> None:
        for worker in self.workers:
            worker.wake()

    def _rescued(self, found: Sequence[Rescued]) -> None:
        for each in found:
            if each.state is LetterState.FAILED:
                self.rescued["given_up"] += 1
            else:
                self.rescued["crashed"] += 1


def _server_name(settings: Settings) -> str:
    """Unique among the servers of a store, and the same after a restart unless the port is chosen by the system."""
    return f"{socket.gethostname()}:{settings.server.port or os.getpid()}"


def _retention(settings: Settings) -> RetentionOptions:
    retention = settings.retention
    directory = Path(retention.archive_directory or Path(settings.server.data_directory) / "archive")
    return RetentionOptions(
        directory=directory,
        resolved=retention.resolved,
        failed=retention.failed,
        archived=retention.archived,
        every=retention.interval,
    )


def _breaker(settings: Settings) -> HoldBackOptions:
    """A breaker pauses first for as long as whoever it holds back waits for the next look."""
    default, pause = HoldBackOptions(), settings.recover.recheck_interval
    return HoldBackOptions(pause=pause, max_pause=max(default.max_pause, pause))


def _queues(settings: Settings, sources: Sequence[Source]) -> tuple[str, ...]:
    """The queues to collect from, each once."""
    return tuple(dict.fromkeys([*(source.dlq for source in sources), *settings.broker.dead_letter_queues]))
