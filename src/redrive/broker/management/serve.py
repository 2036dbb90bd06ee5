"""How does the API listen, beside the broker and in its event loop?"""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

from starlette.responses import Response

from redrive.broker.management.answers import Answer
from redrive.broker.management.app import App, response
from redrive.broker.management.ask import Desk, Listener
from redrive.broker.management.stats import Rates
from redrive.broker.server import Server
from redrive.browser_guard import BrowserGuard
from redrive.listening import Listening, bind, listen_at

_GRACE: Final = 1  # seconds that answers under way may take when it closes


async def start_management(server: Server, host: str, port: int, hosts: Iterable[str] = ()) -> Listening:
    """Listen there; port 0 is any that is free. `hosts`: further names that it answers to."""
    place = bind(host, port)
    address, number = place.getsockname()[:2]
    here: Listener = ("http", str(address), int(number))
    desk = Desk(server, Rates(), lambda: [*server.listeners, here])
    app = BrowserGuard(
        App(desk), (host, *hosts), setting="--allowed-host or server.allowed_hosts", refuse=_refusal
    )
    return await listen_at(place, app, grace=_GRACE, on_close=desk.names.close)


def _refusal(status: HTTPStatus, reason: str) -> Response:
    error = status.phrase.lower().replace(" ", "_")
    return response(Answer(status, {"error": error, "reason": reason}))
