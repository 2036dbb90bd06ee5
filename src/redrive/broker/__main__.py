"""`python -m redrive.broker`: the same as `redrive broker`."""

import sys

from redrive.cli.root import run

sys.exit(run(["broker", *sys.argv[1:]]))
