"""Show URLs without their secrets: the one function for all that print a URL which may contain a password."""

import re
from typing import Final
from urllib.parse import unquote

_HIDDEN: Final = "…"
# Names of query parameters, in lower case and without dots, dashes and underscores.
_SECRET: Final = re.compile(r"password|passwd|pwd|passphrase|secret|token|apikey|accesskey|credential|keypem")
_SEPARATORS: Final = re.compile(r"[._-]")


def hide_secrets(url: str) -> str:
    """The URL with the password before the host, and every secret query parameter, replaced."""
    scheme, mark, rest = url.partition("://")
    if mark:
        userinfo, at, rest = _split_userinfo(rest)
        user, colon, password = userinfo.partition(":")
        shown = f"{user}:{_HIDDEN}" if colon and password else userinfo
        url = f"{scheme}://{shown}{at}{_hide_parameters(rest)}"
    else:
        url = _hide_parameters(url)
    return url


def _split_userinfo(rest: str) -> tuple[str, str, str]:
    """What stands before the host, the `@`, and the rest; a password may contain any character, as people write it."""
    first = rest.find("@")
    question = rest.find("?")
    if first == -1 or (question != -1 and question < first and "/" in rest[:question]):
        return "", "", rest  # the `@` is in the query
    end = rest.find("?", first)
    last = rest.rfind("@", 0, len(rest) if end == -1 else end)
    return rest[:last], "@", rest[last + 1 :]


def _hide_parameters(rest: str) -> str:
    before, question, query = rest.partition("?")
    if not question:
        return rest
    return before + question + "".join(map(_hide_parameter, re.split(r"([&;#])", query)))


def _hide_parameter(part: str) -> str:
    name, equals, value = part.partition("=")
    plain = _SEPARATORS.sub("", unquote(name).lower())
    return f"{name}={_HIDDEN}" if equals and value and _SECRET.search(plain) else part
