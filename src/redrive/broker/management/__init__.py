"""How is the broker looked at and looked after over HTTP?

This is the part of RabbitMQ's management API that a probe and an operator need: the same paths, fields, status
codes and error bodies. It runs in the broker's own event loop, so a request sees the broker between two turns and
changes it as one step. Importing this package imports the HTTP server: do so only where a port is asked for.
"""

from redrive.broker.management.serve import start_management

__all__ = ["start_management"]
