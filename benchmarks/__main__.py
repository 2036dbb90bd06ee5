"""`python -m benchmarks [NAME] [--quick]`."""

import argparse
import importlib
import sys

# Name → module with `run(quick)` that yields cases.
BENCHMARKS = {
    "broker": "benchmarks.broker",
    "consume": "benchmarks.consume",
    "kafka": "benchmarks.kafka",
    "recover": "benchmarks.recover",
    "store-postgres": "benchmarks.store_postgres",
    "store-sqlite": "benchmarks.store_sqlite",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure against peers.")
    parser.add_argument(
        "name", nargs="?", choices=sorted(BENCHMARKS), help="which one; without it they are listed"
    )
    parser.add_argument("--quick", action="store_true", help="smaller numbers, done within 45 seconds")
    options = parser.parse_args()
    if options.name is None:
        for name in sorted(BENCHMARKS):
            print(name)
        return 0
    for case in importlib.import_module(BENCHMARKS[options.name]).run(quick=options.quick):
        print(case.line(options.name), flush=True)
    return 0


sys.exit(main())
