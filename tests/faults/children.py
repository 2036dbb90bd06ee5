"""How does a test get a process of its own that it may kill?"""

import os
import subprocess
import sys
from pathlib import Path


def a_child(script: Path, *words: str) -> "subprocess.Popen[bytes]":
    """A script with what this process can import; whoever starts it ends it."""
    return subprocess.Popen(
        [sys.executable, str(script), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
