"""With which command is a fault on a Kafka mended?

The rule: what is told can be typed as it stands, changes nothing but what it is about, and holds no password. Kafka's
own programs are used, which every cluster has; where a login is needed, they read it from a file that the operator
names. What is merely missing is made by redrive itself.
"""

import shlex
from collections.abc import Mapping

from redrive.transports.kafka.found import Found

# More partitions put a key into another one; copies are spread by hand.
_SPREAD = "add replicas to its partitions with kafka-reassign-partitions.sh"


def set_config(found: Found, topic: str, settings: Mapping[str, str]) -> str:
    """Sets these for one topic; the rest of its settings stays."""
    # Brackets keep the commas of a list together.
    pairs = ",".join(
        f"{name}=[{value}]" if "," in value else f"{name}={value}" for name, value in settings.items()
    )
    return _typed(
        found,
        "kafka-configs.sh",
        "--alter",
        "--entity-type",
        "topics",
        "--entity-name",
        topic,
        "--add-config",
        pairs,
    )


def more_partitions(found: Found, topic: str, count: int) -> str:
    """Gives a topic more partitions; it can never have fewer again."""
    return _typed(found, "kafka-topics.sh", "--alter", "--topic", topic, "--partitions", str(count))


def more_copies(copies: int) -> str:
    """There is no single command for it."""
    return f"{_SPREAD} ({copies} per partition)"


def allow(found: Found, access: str, kind: str, name: str) -> str:
    """Lets the user do this with this topic, group or cluster."""
    what = ["--cluster"] if kind == "cluster" else [f"--{kind}", name]
    operation = "".join(part.capitalize() for part in access.split("_"))
    who = f"User:{found.user or 'ANONYMOUS'}"
    return _typed(found, "kafka-acls.sh", "--add", "--allow-principal", who, "--operation", operation, *what)


def _typed(found: Found, program: str, *words: str) -> str:
    login = ["--command-config", "admin.properties"] if found.secured else []
    return shlex.join([program, "--bootstrap-server", found.servers, *login, *words])
