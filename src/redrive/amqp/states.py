"""Which step follows which, on a connection and on a channel.

The rule: the two tables below are the whole life of both. A key is (state, who sends, what); a key that is
missing is an error and changes nothing. The tables are the same for both ends, which is why a closing state
names the end that asked for it: for that end it means "wait for the answer and ignore the rest", for the
other "answer".

When both ends send close at the same moment, each stays in the state of its own close, answers the other's,
and is done when its own has been answered. The tables do not know numbers, limits or contents.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from redrive.amqp import methods as m
from redrive.amqp.methods import Method, Role


class ConnectionState(Enum):
    """What a connection waits for, up to RUNNING; how it ends, from there on."""

    AWAIT_HEADER = auto()
    AWAIT_START = auto()
    AWAIT_START_OK = auto()
    AWAIT_TUNE = auto()
    AWAIT_SECURE_OK = auto()
    AWAIT_TUNE_OK = auto()
    AWAIT_OPEN = auto()
    AWAIT_OPEN_OK = auto()
    RUNNING = auto()
    CLIENT_CLOSING = auto()
    SERVER_CLOSING = auto()
    FAILED = auto()
    CLOSED = auto()


class ChannelState(Enum):
    """The life of a channel; one that is not open is in no table at all."""

    CLOSED = auto()
    OPENING = auto()
    OPEN = auto()
    CLIENT_CLOSING = auto()
    SERVER_CLOSING = auto()
    FAILED = auto()


CLIENT, SERVER = Role.CLIENT, Role.SERVER
_S = ConnectionState
_C = ChannelState

CHANNEL_CLOSING: Final = {CLIENT: _C.CLIENT_CLOSING, SERVER: _C.SERVER_CLOSING}

# Either end may give up as soon as there are frames; a login is refused that way.
_MAY_CLOSE = (
    _S.AWAIT_START,
    _S.AWAIT_START_OK,
    _S.AWAIT_TUNE,
    _S.AWAIT_SECURE_OK,
    _S.AWAIT_TUNE_OK,
    _S.AWAIT_OPEN,
    _S.AWAIT_OPEN_OK,
    _S.RUNNING,
    _S.FAILED,
)

CONNECTION_STEPS: Final[Mapping[tuple[ConnectionState, Role, type[Method]], ConnectionState]] = {
    (_S.AWAIT_START, SERVER, m.ConnectionStart): _S.AWAIT_START_OK,
    (_S.AWAIT_START_OK, CLIENT, m.ConnectionStartOk): _S.AWAIT_TUNE,
    (_S.AWAIT_TUNE, SERVER, m.ConnectionSecure): _S.AWAIT_SECURE_OK,
    (_S.AWAIT_SECURE_OK, CLIENT, m.ConnectionSecureOk): _S.AWAIT_TUNE,
    (_S.AWAIT_TUNE, SERVER, m.ConnectionTune): _S.AWAIT_TUNE_OK,
    (_S.AWAIT_TUNE_OK, CLIENT, m.ConnectionTuneOk): _S.AWAIT_OPEN,
    (_S.AWAIT_OPEN, CLIENT, m.ConnectionOpen): _S.AWAIT_OPEN_OK,
    (_S.AWAIT_OPEN_OK, SERVER, m.ConnectionOpenOk): _S.RUNNING,
    (_S.RUNNING, SERVER, m.ConnectionBlocked): _S.RUNNING,
    (_S.RUNNING, SERVER, m.ConnectionUnblocked): _S.RUNNING,
    (_S.RUNNING, CLIENT, m.ConnectionUpdateSecret): _S.RUNNING,
    (_S.RUNNING, SERVER, m.ConnectionUpdateSecretOk): _S.RUNNING,
    **{(state, CLIENT, m.ConnectionClose): _S.CLIENT_CLOSING for state in _MAY_CLOSE},
    **{(state, SERVER, m.ConnectionClose): _S.SERVER_CLOSING for state in _MAY_CLOSE},
    (_S.CLIENT_CLOSING, SERVER, m.ConnectionCloseOk): _S.CLOSED,
    (_S.SERVER_CLOSING, CLIENT, m.ConnectionCloseOk): _S.CLOSED,
    # Both at once:
    (_S.CLIENT_CLOSING, SERVER, m.ConnectionClose): _S.CLIENT_CLOSING,
    (_S.CLIENT_CLOSING, CLIENT, m.ConnectionCloseOk): _S.CLIENT_CLOSING,
    (_S.SERVER_CLOSING, CLIENT, m.ConnectionClose): _S.SERVER_CLOSING,
    (_S.SERVER_CLOSING, SERVER, m.ConnectionCloseOk): _S.SERVER_CLOSING,
}

# Methods of other classes are no steps: they are allowed where `CARRIES` has (state, sender).
CHANNEL_STEPS: Final[Mapping[tuple[ChannelState, Role, type[Method]], ChannelState]] = {
    (_C.CLOSED, CLIENT, m.ChannelOpen): _C.OPENING,
    (_C.OPENING, SERVER, m.ChannelOpenOk): _C.OPEN,
    (_C.OPEN, CLIENT, m.ChannelFlow): _C.OPEN,
    (_C.OPEN, SERVER, m.ChannelFlow): _C.OPEN,
    (_C.OPEN, CLIENT, m.ChannelFlowOk): _C.OPEN,
    (_C.OPEN, SERVER, m.ChannelFlowOk): _C.OPEN,
    **{
        (state, role, m.ChannelClose): CHANNEL_CLOSING[role]
        for state in (_C.OPENING, _C.OPEN, _C.FAILED)
        for role in (CLIENT, SERVER)
    },
    (_C.CLIENT_CLOSING, SERVER, m.ChannelCloseOk): _C.CLOSED,
    (_C.SERVER_CLOSING, CLIENT, m.ChannelCloseOk): _C.CLOSED,
    # Both at once:
    (_C.CLIENT_CLOSING, SERVER, m.ChannelClose): _C.CLIENT_CLOSING,
    (_C.CLIENT_CLOSING, CLIENT, m.ChannelCloseOk): _C.CLIENT_CLOSING,
    (_C.SERVER_CLOSING, CLIENT, m.ChannelClose): _C.SERVER_CLOSING,
    (_C.SERVER_CLOSING, SERVER, m.ChannelCloseOk): _C.SERVER_CLOSING,
}

# A client may write ahead of open-ok; a server has nothing to say before it.
CARRIES: Final = frozenset({(_C.OPEN, CLIENT), (_C.OPEN, SERVER), (_C.OPENING, CLIENT)})
CONNECTION_CARRIES: Final = frozenset(
    {(_S.RUNNING, CLIENT), (_S.RUNNING, SERVER), (_S.AWAIT_OPEN_OK, CLIENT)}
)
