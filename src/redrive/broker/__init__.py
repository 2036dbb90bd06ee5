"""The embedded broker: AMQP 0-9-1 as RabbitMQ speaks it, with its dead-letter exchanges, in one process.

The core is pure: it is given bytes and the time, and appends bytes to the outboxes of whoever is to receive them.
`server` is the one file with sockets, `journal` the one with files.
"""
