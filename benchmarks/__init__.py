"""How fast is it, against what, in the same run?

`python -m benchmarks` lists the benchmarks, `python -m benchmarks NAME [--quick]` runs one. Each case is one line of
JSON on standard output: `ratio` is ours against a peer measured in the same run, higher is better, `asked` is what
we ask of ourselves. Nothing here ever fails a test: machines differ, ratios tell.

`python -m benchmarks compare REV` measures this checkout against another commit instead of against peers (`compare`).
"""

from typing import Final

# Name → module with `run(quick)`, which yields cases. Where there are peers to leave out, it also has
# `run_ours(quick)`, which yields figures.
BENCHMARKS: Final = {
    "alert-latency": "benchmarks.alert_latency",
    "broker": "benchmarks.broker",
    "consume": "benchmarks.consume",
    "kafka": "benchmarks.kafka",
    "migrate": "benchmarks.migrate",
    "recover": "benchmarks.recover",
    "startup": "benchmarks.startup",
    "store-postgres": "benchmarks.store_postgres",
    "store-sqlite": "benchmarks.store_sqlite",
}
