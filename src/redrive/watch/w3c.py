"""Which trace does a message belong to, and how does a message we send say so?

W3C Trace Context, as headers of a message: `traceparent` and `tracestate`, as text or as bytes. Azure's clients put
the first under `Diagnostic-Id`, which is read too and never written.

The rule: a header is somebody else's text. What is not exactly as W3C has it is passed over in silence (the parser of
OpenTelemetry would put it into a log line), and a `tracestate` in which a secret is found is dropped.
"""

import re
from typing import Final

from redrive.errors import ServiceError
from redrive.letters import Headers, HeaderValue
from redrive.letters.redact import Redactor

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
except ImportError as error:
    raise ServiceError("tracing needs OpenTelemetry; install it with: pip install 'redrive[otel]'") from error

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_PARENTS: Final = (TRACEPARENT, "Diagnostic-Id")
_PARENT: Final = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.{1,400})?")
_MEMBER: Final = re.compile(
    r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_LONGEST_STATE: Final = 512
_MOST_MEMBERS: Final = 32
# Whatever span is current where a consumer was started has nothing to do with its messages.
ROOT: Final = Context()


def extract(headers: Headers, redactor: Redactor) -> Context:
    """The context that a message comes with; an empty one where it has none."""
    parent = next((text for name in _PARENTS if (text := headers.text(name))), None)
    found = _PARENT.fullmatch(parent) if parent is not None else None
    if found is None or (found[1] == "00" and found[5]):  # only a later version may have more parts
        return ROOT
    context = trace.SpanContext(
        trace_id=int(found[2], 16),
        span_id=int(found[3], 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(int(found[4], 16) & trace.TraceFlags.SAMPLED),
        trace_state=_state(headers.text(TRACESTATE), redactor),
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(context), ROOT) if context.is_valid else ROOT


def inject(headers: Headers, context: Context | None = None) -> Headers:
    """The headers with the current trace in them; as they are where there is no trace.

    A value that stood there as bytes is replaced by bytes.
    """
    current = trace.get_current_span(context).get_span_context()
    if not current.is_valid:
        return headers
    parent = (
        f"00-{trace.format_trace_id(current.trace_id)}-{trace.format_span_id(current.span_id)}"
        f"-{current.trace_flags & trace.TraceFlags.SAMPLED:02x}"
    )
    changes: dict[str, HeaderValue] = {TRACEPARENT: _like(headers.get(TRACEPARENT), parent)}
    if not current.trace_state:
        return headers.without(TRACESTATE).with_(changes)  # the old one belongs to another parent
    state = current.trace_state.to_header()
    return headers.with_({**changes, TRACESTATE: _like(headers.get(TRACESTATE), state)})


def _state(text: str | None, redactor: Redactor) -> trace.TraceState | None:
    if not text or len(text) > _LONGEST_STATE or redactor.find(text):
        return None
    members = [stripped for member in text.split(",") if (stripped := member.strip(" \t"))]
    pairs = dict(member.split("=", 1) for member in members if _MEMBER.fullmatch(member))
    if len(pairs) != len(members) or len(members) > _MOST_MEMBERS:
        return None
    return trace.TraceState(list(pairs.items()))


def _like(old: HeaderValue, new: str) -> HeaderValue:
    return new.encode() if isinstance(old, bytes) else new
