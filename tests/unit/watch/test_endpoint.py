"""Prometheus fetches the figures over HTTP, on loopback unless asked otherwise."""

import contextlib
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from redrive.errors import ServiceError, SettingsError
from redrive.watch.metrics import Metrics, MetricsServer, serve_metrics
from tests.unit.watch.deliveries import an_event


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def server(registry: CollectorRegistry) -> Iterator[MetricsServer]:
    with serve_metrics(0, registry=registry) as server:
        yield server


def get(url: str) -> tuple[str, str]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as response:
        return response.headers["Content-Type"], str(response.read(), "utf-8")


def test_what_was_counted_is_read_over_http(registry: CollectorRegistry, server: MetricsServer) -> None:
    metrics = Metrics(registry)
    metrics.received("orders", 3)
    kind, text = get(server.url)
    assert kind.startswith("text/plain")
    assert 'messages_received_total{queue_name="orders"} 3.0\n' in text
    metrics.received("orders", 1)
    assert 'messages_received_total{queue_name="orders"} 4.0\n' in get(server.url)[1]


def test_any_free_port_is_taken_on_loopback_only(server: MetricsServer) -> None:
    assert server.port > 0
    assert server.url == f"http://127.0.0.1:{server.port}/metrics"
    assert server._place.getsockname()[0] == "127.0.0.1"


def test_closed_it_no_longer_answers_and_its_port_is_free(registry: CollectorRegistry) -> None:
    server = serve_metrics(0, registry=registry)
    server.close()
    server.close()
    with pytest.raises(urllib.error.URLError):
        get(server.url)
    with serve_metrics(server.port, registry=registry) as again:
        assert again.port == server.port


def test_a_port_that_is_taken_is_said_so_in_one_line(registry: CollectorRegistry) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ServiceError, match=rf"^metrics cannot be served on 127\.0\.0\.1:{port}: .* in use; "
        ):
            serve_metrics(port, registry=registry)


@pytest.mark.parametrize("port", [-1, 65536, "9100", 1.0, True])
def test_a_port_that_is_none_is_refused(registry: CollectorRegistry, port: int) -> None:
    with pytest.raises(SettingsError, match="the port for metrics must be an integer from 0 to 65535"):
        serve_metrics(port, registry=registry)


@pytest.mark.parametrize("host", ["256.256.256.256", "no such host", "a" * 300, "\udcff"])
def test_a_host_that_is_none_is_refused(registry: CollectorRegistry, host: str) -> None:
    with pytest.raises(ServiceError, match="metrics cannot be served on"):
        serve_metrics(0, host, registry=registry)
    with pytest.raises(SettingsError, match="the host for metrics is empty"):
        serve_metrics(0, "", registry=registry)


def test_metrics_are_answered_beside_requests_that_do_not_arrive(server: MetricsServer) -> None:
    with contextlib.ExitStack() as halves:
        for _ in range(300):
            half = halves.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            half.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ")
        assert get(server.url)[0].startswith("text/plain")


def test_health_is_failing_while_dead_letters_cannot_be_published(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)
    with serve_metrics(0, registry=registry, health=metrics.health) as server:
        url = server.url.replace("/metrics", "/health")
        assert json.loads(get(url)[1]) == {"status": "ok", "queues": {}}
        # When three tries in a row fail
        for _ in range(3):
            metrics.dead_lettered(an_event(error="no queue"))
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(url)
        with caught.value as answer:
            assert answer.code == 503
            found = json.loads(answer.read())
        assert found == {"status": "failing", "queues": {"orders": {"dlq_publish_failures_in_a_row": 3}}}
        assert 'dlq_publish_failures_in_a_row{queue_name="orders"} 3.0\n' in get(server.url)[1]
        # And when one succeeds
        metrics.dead_lettered(an_event())
        assert json.loads(get(url)[1])["status"] == "ok"
        assert 'dlq_publish_failures_in_a_row{queue_name="orders"} 0.0\n' in get(server.url)[1]
