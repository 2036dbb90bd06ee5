"""Serve the metrics of this process to Prometheus, and its health to whoever asks.

`serve_metrics` answers from a separate thread and event loop, so that a busy consumer still answers. It has
no password and no TLS, so it listens on loopback unless another address is asked for by name. A client that does not
finish its request is cut off as in `redrive.listening`.
"""

import asyncio
import json
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from threading import Thread
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import prometheus_client
from prometheus_client import CollectorRegistry

from redrive.errors import ServiceError, SettingsError

Health: TypeAlias = Callable[[], Mapping[str, object]]
_LOOPBACK: Final = "127.0.0.1"
_GRACE: Final = 1  # seconds that an answer may take when it closes


class MetricsServer:
    """A running endpoint."""

    def __init__(
        self, place: socket.socket, host: str, registry: CollectorRegistry, health: Health | None = None
    ) -> None:
        self.host = host
        self.port: int = place.getsockname()[1]
        self._place = place
        self._registry = registry
        self._health = health
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started: Future[None] = Future()
        self._thread = Thread(target=self._run, name="redrive-metrics", daemon=True)
        self._thread.start()
        self._started.result()

    @property
    def url(self) -> str:
        """Where it answers."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """Stop listening. Closing twice is closing once."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            raise
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        from redrive.listening import listen_at  # noqa: PLC0415  costs time only those who ask for it

        metrics = prometheus_client.make_asgi_app(self._registry)
        app = metrics if self._health is None else _with_health(metrics, self._health)
        listening = await listen_at(self._place, app, grace=_GRACE)
        self._started.set_result(None)
        await self._stop.wait()
        await listening.close()


def serve_metrics(
    port: int,
    host: str = _LOOPBACK,
    *,
    registry: CollectorRegistry | None = None,
    health: Health | None = None,
) -> MetricsServer:
    """Answer Prometheus at `http://host:port/metrics`; port 0 is any free one.

    With `health`, such as `Metrics.health`, `/health` answers what it returns: 200 if its `status` is `ok`, else 503.
    """
    from redrive.listening import bind  # noqa: PLC0415  likewise

    if type(port) is not int or not 0 <= port <= 65535:
        raise SettingsError(f"the port for metrics must be an integer from 0 to 65535, not {port!r:.40}")
    if not host:
        raise SettingsError("the host for metrics is empty; set an address, for example 127.0.0.1")
    try:
        place = bind(host, port)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while attempting")[0]
        raise ServiceError(
            f"metrics cannot be served on {host}:{port}: {reason}; choose another port or host"
        ) from error
    except UnicodeError:
        raise ServiceError(f"metrics cannot be served on {host!r:.80}: not a valid address") from None
    return MetricsServer(place, host, prometheus_client.REGISTRY if registry is None else registry, health)


def _with_health(metrics: Any, health: Health) -> Any:
    """An ASGI application that answers `/health` itself and leaves everything else to another."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope.get("type") != "http" or scope.get("path") != "/health":
            await metrics(scope, receive, send)
            return
        found = health()
        body = json.dumps(found).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        status = 200 if found.get("status") == "ok" else 503
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app
