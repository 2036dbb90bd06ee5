"""For tests, ours and those of users: a clock turned by hand, letters, and the suites every adapter passes.

`store_suite` and `store_machine` need pytest and hypothesis; the rest needs nothing.
"""

from redrive.testing.clock import ManualClock
from redrive.testing.factories import a_failure, a_letter, a_message, letters

__all__ = ["ManualClock", "a_failure", "a_letter", "a_message", "letters"]
