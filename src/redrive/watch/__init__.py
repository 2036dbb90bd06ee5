"""How is consuming watched: counted, traced, logged?

Everything here listens and never steers. A listener has the methods of `consume.observer.Observer`, by shape and not
by import: the two rooms do not know each other. Each file stands for itself, so that nobody pays for a library that
is not used: `metrics` needs prometheus-client, `tracing` needs OpenTelemetry's API, `logs` needs nothing.
"""
