"""Is the whole way back right, whatever goes wrong on it?

The real consume, collect, recover and replay code on the memory transport and the memory store, on a loop whose time
is virtual, with faults at every step of input and output: `simulate(seed)` runs one small world of a few messages to
its rest and judges it. Seeds repeat: `python -m redrive.testing.simulation --trace SEED` tells one step by step.

`virtual` is the time, `lives` are processes that can be killed and stopped, `faults` the schedule, `edges` where faults
happen, `faulty_store` and `faulty_transport` what happens there, `watch` the rules, `world` who lives there, `run` one
seed from beginning to end.
"""

from redrive.testing.simulation.run import Outcome, simulate

__all__ = ["Outcome", "simulate"]
