"""The command that shows more about an incident.

Alerts name it where a console would have a link. A command is safe to paste into a shell: every name that comes from a
broker or a message is quoted, for the filter language and for the shell.
"""

import re
import shlex
from typing import Final

from redrive.letters.letter import storable
from redrive.watch.alerts.incidents import Incident

_BARE: Final = re.compile(r"[A-Za-z0-9_./:@+-]+")
_OPEN: Final = "state:pending,processing,manual"
_DOCTOR: Final = "redrive doctor"
_STATS: Final = "redrive stats"


def see_more(measure: str, incident: Incident) -> str:
    """The command for an incident of a rule on this measure."""
    found, subject = incident.found, incident.subject
    match measure:
        case "open_letters":
            if found.letter_id is not None:
                return shlex.join(["redrive", "show", found.letter_id])
            words = [_word("source", subject), _OPEN]
            if incident.broker is not None:
                words.insert(0, _word("broker", incident.broker))
            if found.group is not None:
                words.append(_word("group", found.group))
            return _list(*words)
        case "dead_letter_ratio" | "recent_dead_letter_ratio":
            return _list(_word("source", subject), "sort:-created")
        case "error_spike":
            return _list(_word("error", subject), "since:1h")
        case "ingestion":
            return _list("since:5m")
        case "unconfirmed":
            return _list(_word("source", subject), "unconfirmed:yes")
        case "unserved":
            return _list(_word("broker", subject), "state:pending")
        case "backlog" | "resolution":
            return _STATS
        case _:
            return _DOCTOR


def _list(*words: str) -> str:
    return shlex.join(["redrive", "list", " ".join(words)])


def _word(field: str, value: str) -> str:
    """A condition of the filter language that holds for this value alone."""
    value = storable(value)
    if _BARE.fullmatch(value):
        return f"{field}:{value}"
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{field}:"{quoted}"'
