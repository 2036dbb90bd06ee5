"""How does the API do what a client could do over AMQP?

By doing it over AMQP, without the octets: `acting` opens a session and a channel for the user, so that the checks,
permissions and texts are the handlers' own, and closes them, which gives back whatever was not settled.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from redrive.amqp.errors import AmqpError, ReplyCode
from redrive.broker.channel import Channel
from redrive.broker.management.answers import RefusalError, bad_request, not_authorised, not_found
from redrive.broker.management.ask import Ask
from redrive.broker.session import Session
from redrive.broker.vhost import VHost

Blame = Callable[[AmqpError], RefusalError]


def of_request(error: AmqpError) -> RefusalError:
    """How a declare, bind or delete that failed is answered."""
    if error.code is ReplyCode.NOT_FOUND:
        return not_found(error.text)
    if error.code in {ReplyCode.ACCESS_REFUSED, ReplyCode.NOT_ALLOWED}:
        return not_authorised("Access refused.")
    return bad_request(error.text)


def of_get(error: AmqpError) -> RefusalError:
    """How a get that failed is answered."""
    if error.code is ReplyCode.NOT_FOUND:
        return not_found(error.reply_text)
    if error.code is ReplyCode.ACCESS_REFUSED:
        return not_authorised(error.reply_text)
    return of_publish(error)


def of_publish(error: AmqpError) -> RefusalError:
    """How a publish that failed is answered: with the code of AMQP in the reason."""
    return bad_request(f"{int(error.code)} {error.reply_text}")


@contextmanager
def acting(ask: Ask, vhost: VHost, blame: Blame = of_request) -> Iterator[Channel]:
    """A channel of the user in the virtual host, for the time of a request."""
    session = Session(ask.broker, f"{ask.address} -> management", peer_address=ask.address)
    session.user, session.tags, session.vhost, session.now = ask.user, ask.tags, vhost, ask.now
    channel = session.channels[1] = Channel(session, 1)
    try:
        yield channel
    except AmqpError as error:
        raise blame(error) from None
    finally:
        session.gone(ask.now)
