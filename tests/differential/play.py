"""How is a script played on a broker, and what is kept of it?

The one rule: whatever happens, the record up to there is kept; a script that waits in vain ends with an entry
that says for what. This file does not know which broker it is, nor what the record is compared with.
"""

import re
from collections.abc import Callable

from tests.differential.client import NothingCameError, Scene
from tests.differential.record import Record
from tests.services import RabbitMQ


def play(script: Callable[[Scene], None], broker: RabbitMQ, *, by_the_page: bool = False) -> Record:
    """The record of a script in a fresh vhost; `by_the_page`: what scripts demand is looked at."""
    with broker.fresh() as vhost, Scene(vhost, by_the_page=by_the_page) as scene:
        try:
            script(scene)
        except NothingCameError as error:
            scene.note("", "waited in vain", str(error))
    return scene.record


def version_of(broker: RabbitMQ) -> tuple[int, ...]:
    """Which RabbitMQ it is, for example (3, 10, 8)."""
    version: str = broker.api("GET", "/overview")["rabbitmq_version"]
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
