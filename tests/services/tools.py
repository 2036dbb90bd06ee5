"""Which programs that are no servers do tests run beside a service?

The rule: a tool is found or it is missing, and a missing one skips or fails a test as a service does
(`look_for_program`). Nothing is installed here: that is for `scripts/services`.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from redrive.errors import ServiceError

NODE = Path(__file__).parents[1] / "interop" / "node"


@dataclass(frozen=True)
class Tool:
    """A tool by its name; `find` says where it is, or what is missing and how to get it."""

    name: str
    find: Callable[[], Path]


def _find_amqplib() -> Path:
    package = NODE / "node_modules" / "amqplib" / "package.json"
    if not package.exists():
        raise ServiceError("the Node.js package amqplib is missing; run: scripts/services install amqplib")
    if shutil.which("node") is None:
        raise ServiceError("there is no node on this machine; install Node.js 20 or newer")
    return package


AMQPLIB = Tool("amqplib", _find_amqplib)
