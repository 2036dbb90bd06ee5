"""Where does Prometheus fetch the figures?

`serve_metrics` runs prometheus-client's own server in a thread. It has no password and no TLS, so it listens on
loopback unless another address is asked for by name.
"""

from threading import Thread
from types import TracebackType
from typing import Final, Self
from wsgiref.simple_server import WSGIServer

import prometheus_client
from prometheus_client import CollectorRegistry

from redrive.errors import ServiceError, SettingsError

_LOOPBACK: Final = "127.0.0.1"


class MetricsServer:
    """A running endpoint."""

    def __init__(self, server: WSGIServer, thread: Thread, host: str) -> None:
        self._server = server
        self._thread = thread
        self.host = host
        self.port: int = server.server_port

    @property
    def url(self) -> str:
        """Where it answers."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """Stop listening. Closing twice is closing once."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve_metrics(
    port: int, host: str = _LOOPBACK, *, registry: CollectorRegistry | None = None
) -> MetricsServer:
    """Answer Prometheus at `http://host:port/metrics`; port 0 is any free one."""
    if type(port) is not int or not 0 <= port <= 65535:
        raise SettingsError(f"the port for metrics must be a whole number from 0 to 65535, not {port!r:.40}")
    if not host:
        raise SettingsError("the host for metrics is empty; give an address, for example 127.0.0.1")
    try:
        server, thread = prometheus_client.start_http_server(
            port, host, prometheus_client.REGISTRY if registry is None else registry
        )
    except OSError as error:
        raise ServiceError(
            f"metrics cannot be served on {host}:{port}: {error.strerror or error}; choose another port or host"
        ) from error
    except UnicodeError:
        raise ServiceError(f"metrics cannot be served on {host!r:.80}: that is no address") from None
    return MetricsServer(server, thread, host)
