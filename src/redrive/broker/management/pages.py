"""Answer requests for pages: the list of paths, and where the command line tool is.

There is no web interface. RabbitMQ 4.3 redirects `/api` and `/cli` to pages and no longer serves `rabbitmqadmin`; the
pages here are generated from the routes.
"""

from collections.abc import Iterable, Mapping
from html import escape
from typing import Final

from redrive.broker.management.answers import Answer
from redrive.broker.management.ask import Ask

_HTML: Final = {"Content-Type": "text/html; charset=utf-8"}
_PAGE: Final = """\
<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title></head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""
_CLI: Final = """\
<p>This broker works with <code>rabbitmqadmin</code>, version 2 or version 1, and does not serve it, like RabbitMQ
4.3. Version 2 is at <a href="https://github.com/rabbitmq/rabbitmqadmin-ng">github.com/rabbitmq/rabbitmqadmin-ng</a>;
version 1 comes with RabbitMQ up to 4.2.</p>"""


def to_index(_ask: Ask) -> Answer:
    """Redirect to the list of paths."""
    return Answer(301, headers={"Location": "/api/index.html"})


def to_cli(_ask: Ask) -> Answer:
    """Redirect to the page about the command line tool."""
    return Answer(301, headers={"Location": "/cli/index.html"})


def cli(_ask: Ask) -> Answer:
    """Where the command line tool is."""
    return Answer(body=_PAGE.format(title="rabbitmqadmin", body=_CLI), headers=_HTML)


def index(routes: Mapping[str, Iterable[str]]) -> Answer:
    """All paths with their methods."""
    rows = "\n".join(
        f"<tr><td>{', '.join(methods)}</td><td><code>{escape(path)}</code></td></tr>"
        for path, methods in routes.items()
    )
    table = f"<table>\n<tr><th>methods</th><th>path</th></tr>\n{rows}\n</table>"
    return Answer(body=_PAGE.format(title="HTTP API of the redrive broker", body=table), headers=_HTML)
