"""What does a broker say to a script? `python -m tests.differential [--on rabbitmq-4.3|embedded] [part of a name]`

The one rule: records are shown as they are compared, before any difference is forgiven. The broker comes from
where the tests get theirs.
"""

import argparse
import os
import re
import sys
from pathlib import Path

from redrive.errors import ServiceError
from tests.differential.differences import rendered
from tests.differential.play import play
from tests.differential.record import lines
from tests.differential.scripts import all_scripts
from tests.interop.brokers import EACH_BROKER
from tests.services import Missing, Run, look_for

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "rabbitmq-differences.md"


def write_page() -> None:
    """Replace the two tables of the page by those of `differences.py`."""
    tables = iter(rendered())
    page = re.sub(r"(?:^\|.*\n)+", lambda _: f"{next(tables)}\n", PAGE.read_text(), flags=re.MULTILINE)
    PAGE.write_text(page)


def main() -> int:
    """Plays the scripts whose names hold the given text."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.differential", description="Shows the record of scripts."
    )
    parser.add_argument("--on", choices=[*EACH_BROKER], default="rabbitmq-4.3", help="the broker")
    parser.add_argument(
        "--write-page", action="store_true", help="write the tables of differences into the documentation"
    )
    parser.add_argument("name", nargs="?", default="", help="a part of the scripts' names")
    arguments = parser.parse_args()
    if arguments.write_page:
        write_page()
        return 0
    found = look_for(EACH_BROKER[arguments.on], os.environ)
    if isinstance(found, Missing):
        raise ServiceError(found.reason)
    with Run.of(os.environ) as run:
        address = run.address(EACH_BROKER[arguments.on], os.environ)
        for name, script in all_scripts().items():
            if arguments.name in name:
                shown = lines(play(script, address))
                sys.stdout.write("\n".join([f"# {name}", *shown, "", ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
