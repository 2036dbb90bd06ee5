"""A simulation of the path of dead letters, with faults at every step.

The real consume, collect, recover and replay code runs on the memory transport and the memory store, on an event loop
whose time is virtual. `simulate(seed)` runs one small world of a few messages until it is at rest, and checks the
rules. Seeds repeat: `python -m redrive.testing.simulation --trace SEED` prints one step by step.

`virtual` is the time, `lives` are processes that can be killed and stopped, `faults` is the schedule, `edges` carries
faults out, `faulty_store` and `faulty_transport` are what a process sees, `watch` has the rules, `script` is what a
seed decides, `world` has the brokers and processes, `run` runs one seed and `batch` many.
"""

from redrive.testing.simulation.run import Outcome, simulate

__all__ = ["Outcome", "simulate"]
