"""How is a script played on a broker, and what is kept of it?

The one rule: whatever happens, the record up to there is kept; a script that waits in vain ends with an entry
that says for what. This file does not know which broker it is, nor what the record is compared with.
"""

from collections.abc import Callable

from tests.differential.client import NothingCameError, Scene
from tests.differential.record import Record
from tests.services import RabbitMQ


def play(script: Callable[[Scene], None], broker: RabbitMQ, *, checked: bool = False) -> Record:
    """The record of a script in a fresh vhost; `checked`: what the script demands is checked."""
    with broker.fresh() as vhost, Scene(vhost, checked=checked) as scene:
        try:
            script(scene)
        except NothingCameError as error:
            scene.note("", "waited in vain", str(error))
    return scene.record
