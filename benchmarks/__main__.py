"""`python -m benchmarks [NAME] [--quick] [--only-ours]` and `python -m benchmarks compare REV [NAME ...]`."""

import argparse
import importlib
import signal
import sys

from benchmarks import BENCHMARKS, compare


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop servers and remove files as after Ctrl-C
    if sys.argv[1:2] == ["compare"]:
        return compare.main(sys.argv[2:])
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure against peers.",
        epilog="'python -m benchmarks compare --help' explains how to measure against another commit.",
    )
    parser.add_argument(
        "name", nargs="?", choices=sorted(BENCHMARKS), help="which one; without it they are listed"
    )
    parser.add_argument("--quick", action="store_true", help="smaller numbers, done within 45 seconds")
    parser.add_argument("--only-ours", action="store_true", help="leave the peers out where possible")
    options = parser.parse_args()
    if options.name is None:
        for name in sorted(BENCHMARKS):
            print(name)
        return 0
    module = importlib.import_module(BENCHMARKS[options.name])
    run = getattr(module, "run_ours", module.run) if options.only_ours else module.run
    for found in run(quick=options.quick):
        print(found.line(options.name), flush=True)
    return 0


sys.exit(main())
