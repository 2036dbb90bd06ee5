"""How is the shop looked at while it runs?

On a screen: the letters by state and by failure, and what happened last, drawn anew in place. In a pipe: a line for
each event. For programs: nothing until the end. All three are told the same things.
"""

from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

from redrive.demo.story import Event, Story, Summary
from redrive.letters import LetterState

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_LAST: Final = 14  # events on the screen
_COLOURS: Final = {
    LetterState.PENDING: "yellow",
    LetterState.PROCESSING: "cyan",
    LetterState.MANUAL: "magenta",
    LetterState.RESOLVED: "green",
    LetterState.FAILED: "red",
    LetterState.ARCHIVED: "bright_black",
}


class View(Protocol):
    """Somebody who looks at the shop."""

    def opened(self, hints: Sequence[str]) -> None:
        """The shop is open; `hints` tell what else can be looked at."""

    def show(self, events: Sequence[Event], story: Story, *, open_for: timedelta) -> None:
        """This is new, and so it stands now."""

    def closed(self) -> None:
        """Nothing comes any more."""


class Silent:
    """Shows nothing."""

    def opened(self, hints: Sequence[str]) -> None:
        """Nothing."""

    def show(self, events: Sequence[Event], story: Story, *, open_for: timedelta) -> None:
        """Nothing."""

    def closed(self) -> None:
        """Nothing."""


class Lines:
    """A line for each event."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def opened(self, hints: Sequence[str]) -> None:
        """The hints, a line each."""
        for hint in hints:
            self._say(hint)

    def show(self, events: Sequence[Event], story: Story, *, open_for: timedelta) -> None:  # noqa: ARG002
        """A line each."""
        for event in events:
            self._say(f"{event.at:%H:%M:%S} {event.text}")

    def closed(self) -> None:
        """Nothing more."""


class Screen:
    """Drawn anew in place."""

    def __init__(self, console: "Console | None" = None) -> None:
        from rich.console import Console  # noqa: PLC0415  loaded where there is a screen
        from rich.live import Live  # noqa: PLC0415

        self._hints: Sequence[str] = ()
        self._last: deque[Event] = deque(maxlen=_LAST)
        self._live = Live(console=console or Console(), auto_refresh=False)

    def opened(self, hints: Sequence[str]) -> None:
        """Begin to draw."""
        self._hints = hints
        self._live.start()

    def show(self, events: Sequence[Event], story: Story, *, open_for: timedelta) -> None:
        """Draw anew."""
        self._last.extend(events)
        self._live.update(self._picture(story, open_for), refresh=True)

    def closed(self) -> None:
        """The last picture stays."""
        self._live.stop()

    def _picture(self, story: Story, open_for: timedelta) -> "RenderableType":
        from rich.console import Group  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        so_far = story.summary(open_for.total_seconds(), {}, {})
        states = Text(f"open for {open_for.total_seconds():3.0f} s   ", style="bold")
        for state in LetterState:
            words = f"{str(state).removeprefix('dlq_')} {so_far.states.get(str(state), 0)}   "
            states.append(words, style=_COLOURS[state])
        events = Text(no_wrap=True, overflow="ellipsis")
        for event in self._last:
            colour = _COLOURS[event.state] if event.state is not None else ""
            events.append(f"{event.at:%H:%M:%S} ", style="dim").append(f"{event.text}\n", style=colour)
        hints = Text("\n".join(self._hints), style="dim")
        return Group(hints, Text(), states, Text(), _failures(so_far), Text(), events)


def _failures(so_far: Summary) -> "RenderableType":
    from rich.table import Table  # noqa: PLC0415

    grid = Table(box=None, pad_edge=False)
    for title in ("failure", "letters", "state"):
        grid.add_column(title, justify="right" if title == "letters" else "left", no_wrap=True)
    for fate in so_far.failures:
        grid.add_row(fate.failure, str(fate.letters), states_in_words(fate.states))
    return grid


def states_in_words(states: dict[str, int]) -> str:
    """`3 resolved, 1 manual`."""
    return ", ".join(f"{count} {state.removeprefix('dlq_')}" for state, count in states.items())


def summary_in_words(summary: Summary) -> str:
    """The end, for people."""
    sent = ", ".join(f"{count} {queue}" for queue, count in summary.sent.items())
    lines = [
        f"The shop was open for {summary.seconds:g} s and received {sent}.",
        f"{summary.letters} of them became dead letters: {states_in_words(summary.states) or 'none'}.",
        "",
    ]
    lines += [
        f"  {fate.failure:<20} {fate.letters:>4}  {states_in_words(fate.states)}" for fate in summary.failures
    ]
    killed = ", ".join(f"{name} {count} times" for name, count in summary.deaths.items() if count)
    if killed:
        lines += ["", f"Consumers that exited and were restarted: {killed}."]
    return "\n".join(lines)
