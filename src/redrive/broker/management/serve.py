"""How does the API listen, beside the broker and in its event loop?"""

from typing import Final

from redrive.broker.management.app import App
from redrive.broker.management.ask import Desk, Listener
from redrive.broker.management.stats import Rates
from redrive.broker.server import Server
from redrive.listening import Listening, bind, listen_at

_GRACE: Final = 1  # seconds that answers under way may take when it closes


async def start_management(server: Server, host: str, port: int) -> Listening:
    """Listen there; port 0 is any that is free."""
    place = bind(host, port)
    address, number = place.getsockname()[:2]
    here: Listener = ("http", str(address), int(number))
    desk = Desk(server, Rates(), lambda: [*server.listeners, here])
    return await listen_at(place, App(desk), grace=_GRACE, on_close=desk.names.close)
