"""What does a broker say to a script? `python -m tests.differential [--on rabbitmq|embedded] [part of a name]`

The one rule: records are shown as they are compared, before any difference is forgiven. The broker comes from
where the tests get theirs.
"""

import argparse
import os
import sys

from redrive.errors import ServiceError
from tests.differential.play import play
from tests.differential.record import lines
from tests.differential.scripts import all_scripts
from tests.interop.brokers import BROKERS
from tests.services import Missing, Run, look_for


def main() -> int:
    """Plays the scripts whose names hold the given text."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.differential", description="Shows the record of scripts."
    )
    parser.add_argument("--on", choices=[*BROKERS], default="rabbitmq", help="the broker")
    parser.add_argument("name", nargs="?", default="", help="a part of the scripts' names")
    arguments = parser.parse_args()
    found = look_for(BROKERS[arguments.on], os.environ)
    if isinstance(found, Missing):
        raise ServiceError(found.reason)
    with Run.of(os.environ) as run:
        address = run.address(BROKERS[arguments.on], os.environ)
        for name, script in all_scripts().items():
            if arguments.name in name:
                shown = lines(play(script, address))
                sys.stdout.write("\n".join([f"# {name}", *shown, "", ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
