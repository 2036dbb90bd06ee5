"""How is a user's function called with a delivery?

`Handler.of` looks at the function once: which parameter takes the decoded message, which (if any) the `Context`,
and whether it is a coroutine or a plain function, which then runs in a thread. What it cannot call it refuses at the
start, in a sentence that names the function.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeAlias, get_type_hints

import msgspec

from redrive.consume.context import Context
from redrive.consume.decoding import Decode, decoder_for, own_decoder
from redrive.errors import SettingsError

Call: TypeAlias = Callable[[Any, Context | None], Any]


class Handler(msgspec.Struct, frozen=True):
    """A user's function, with what it needs to be called."""

    name: str
    function: Callable[..., Any]
    decode: Decode | None  # None: it wants nothing but the context
    wants_context: bool
    is_async: bool
    call: Call  # with the value and the context; each may be None only where it is not wanted

    @classmethod
    def of(cls, function: Callable[..., Any], decoder: Callable[[Any], Any] | None = None) -> Self:
        """The handler that this function is."""
        name = getattr(function, "__qualname__", type(function).__name__)
        if not callable(function):
            raise SettingsError(f"a handler must be a function, not a {type(function).__name__}")
        payload: list[Any] = []
        contexts: list[int] = []
        for place, parameter in enumerate(_parameters(name, function)):
            if parameter.annotation is Context:
                contexts.append(place)
            else:
                payload.append(parameter.annotation)
        if len(payload) > 1 or len(contexts) > 1:
            raise SettingsError(
                f"handler {name}: must take one message and optionally one Context; it has "
                f"{len(payload) + len(contexts)} parameters"
            )
        decode: Decode | None = None
        if payload:
            try:
                decode = own_decoder(decoder, payload[0]) if decoder is not None else decoder_for(payload[0])
            except SettingsError as error:
                raise SettingsError(f"handler {name}: {error}") from None
        return cls(
            name,
            function,
            decode,
            bool(contexts),
            inspect.iscoroutinefunction(_code_of(function)),
            _call(function, bool(payload), contexts),
        )


def _call(function: Callable[..., Any], takes_payload: bool, contexts: Sequence[int]) -> Call:  # noqa: FBT001  as it was found
    """The function, whatever it takes, as one of the value and the context: chosen once, not for each message."""
    if not contexts:
        return (lambda value, _: function(value)) if takes_payload else lambda _, __: function()
    if not takes_payload:
        return lambda _, context: function(context)
    return (lambda value, context: function(context, value)) if contexts == [0] else function


def _code_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a call comes down to: of a partial, of a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _parameters(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters that a call has to fill, with their types resolved."""
    try:
        signature = inspect.signature(function)
        hints = get_type_hints(_code_of(function))
    except NameError as error:
        raise SettingsError(
            f"handler {name}: its type annotations cannot be resolved: {error}; import the types in its "
            "module"
        ) from None
    except (TypeError, ValueError) as error:
        raise SettingsError(f"handler {name}: cannot be called: {error}") from None
    found: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        optional = parameter.default is not inspect.Parameter.empty
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY:
            if optional:
                continue
            raise SettingsError(
                f"handler {name}: parameter '{parameter.name}' is keyword-only; make it positional"
            )
        kind = hints.get(parameter.name, parameter.annotation)
        if optional and found and kind is not Context:
            continue  # it has a default, and the message has its place already
        found.append(parameter.replace(annotation=kind))
    return found
