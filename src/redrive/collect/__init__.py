"""Broker → store: dead letters are drained from their queues and kept, and verdicts are heard.

`reading` makes a letter of a message, whatever convention marked it; `collector` drains one dead-letter queue,
`verdicts` the queue of verdicts; `drain` is the loop that both of them are.
"""

from redrive.collect.collector import Collector
from redrive.collect.verdicts import VerdictCollector

__all__ = ["Collector", "VerdictCollector"]
