"""One test per sentence of the contract in `redrive.transports.base`.

Make a file of tests for a transport by subclassing::

    class TestMyTransport(TransportSuite):
        async def open_transport(self, place: Any) -> Transport:
            transport = MyTransport(place, SystemClock())
            await transport.open()
            return transport

        async def cut(self, place: Any) -> None: ...  # and the other hooks of `Ground`

`RestartSuite` holds the same for a broker whose process ends; give it a broker of its own.
The numbers in the names are those of the contract. What the transport's `Capabilities` do not name is skipped. `Relay`
stands between a transport and its broker and loses connections on demand. Tests are coroutines: use pytest-asyncio
in auto mode.
"""

from redrive.testing.transport_suite.dead_letters import DeadLetters
from redrive.testing.transport_suite.failing import Failing
from redrive.testing.transport_suite.looking import Looking
from redrive.testing.transport_suite.making import Making
from redrive.testing.transport_suite.publishing import Publishing
from redrive.testing.transport_suite.receiving import Receiving
from redrive.testing.transport_suite.redriving import Redriving
from redrive.testing.transport_suite.relay import Relay
from redrive.testing.transport_suite.releasing import Releasing
from redrive.testing.transport_suite.restarting import RestartSuite

__all__ = ["Relay", "RestartSuite", "TransportSuite"]


class TransportSuite(Receiving, Releasing, DeadLetters, Publishing, Looking, Failing, Making, Redriving):
    """The whole contract as tests."""
