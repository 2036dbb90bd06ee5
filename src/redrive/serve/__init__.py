"""One process that runs everything: collectors, workers, the embedded broker, and HTTP.

`server` puts it together and takes it apart again; `crew` are the services, `child` the broker's process, `lock` keeps
a second server away, `web` answers `/health`, `/metrics` and questions for the store.
"""

from redrive.serve.server import Places, Server

__all__ = ["Places", "Server"]
