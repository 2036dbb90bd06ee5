"""How does a program end when the one that started it is gone?

`python -m redrive.serve.bound PARENT ARGUMENTS…` is `redrive ARGUMENTS…`, but the kernel kills it when its parent dies,
however that happens (`PR_SET_PDEATHSIG`, Linux). Elsewhere it is just the command.

The embedded broker is run this way: it keeps what it has confirmed however it ends, so a kill loses nothing.
"""

import ctypes
import os
import runpy
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def _bind(parent: int) -> None:
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it died before that


if __name__ == "__main__":
    _bind(int(sys.argv[1]))
    sys.argv[1:] = sys.argv[2:]
    runpy.run_module("redrive", run_name="__main__", alter_sys=True)
