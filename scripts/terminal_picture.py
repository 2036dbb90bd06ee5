"""Draw the picture of a terminal in the README: `python scripts/terminal_picture.py`.

It runs a real server with the embedded broker, lets a consumer fail in three ways, runs `COMMANDS` on the resulting
letters, ends the simulated outage before the replay, and writes what they print to docs/images/terminal.svg.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

ROOT: Final = Path(__file__).resolve().parents[1]
PICTURE: Final = ROOT / "docs" / "images" / "terminal.svg"
COLUMNS: Final = 100
_TIMEOUT_S: Final = 60
_PROGRAM: Final = "from redrive.cli import main; main()"
_SHOP: Final = """
from dataclasses import dataclass
from pathlib import Path
from redrive import App

@dataclass
class Order:
    id: int
    total: float

app = App("{broker}")

@app.consume("orders")
async def handle(order: Order) -> None:
    if order.id == 4:
        raise PermissionError("customer 4711 may not order on account")
    if order.id in (2, 3) and Path("outage").exists():
        raise TimeoutError(f"payment service did not answer within 5000 ms for order {{order.id}}")
"""
ORDERS: Final = (
    '{"id": 1, "total": 19.9}',
    '{"id": 2, "total": 5.0}',
    '{"id": 3, "total": 12.5}',
    '{"id": 4, "total": 700}',
    '{"id": 5, "total": "a lot"}',
)
COMMANDS: Final = (
    "redrive list",
    "redrive show {letter} --no-body",
    "redrive replay error:TimeoutError --yes",
)


class Session:
    """A folder in which commands run against one server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        clean = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
        self.environment = {
            **clean,
            "PYTHONPATH": str(ROOT / "src"),
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": str(COLUMNS),
            "FORCE_COLOR": "1",
        }

    @contextmanager
    def running(self, *words: str, until: str) -> Iterator[str]:
        """A command that keeps running; yields the line that says it is ready."""
        with subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            try:
                yield next(line for line in process.stdout or () if until in line)
            finally:
                process.terminate()

    def run(self, command: str) -> str:
        """What a command prints."""
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, *shlex.split(command)[1:]],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{command} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def letters(self) -> list[str]:
        """Ids of the letters, the newest first."""
        return re.findall(r"\b[0-9a-hjkmnp-tv-z]{16}\b", self.run("redrive list"))


def record(session: Session) -> Iterator[tuple[str, str]]:
    """Each command with what it prints."""
    serve = ("serve", "--data", "data", "--port", "0", "--broker-port", "0", "--management-port", "0")
    with session.running(*serve, until="is ready") as ready:
        addresses = re.search(r"broker (amqp://\S+) .*http (http://\S+),", ready)
        if addresses is None:
            raise SystemExit(f"no addresses in: {ready}")
        broker, http = addresses.groups()
        session.environment |= {"REDRIVE_STORE_URL": http, "REDRIVE_BROKER_URL": broker}
        (session.folder / "shop.py").write_text(_SHOP.format(broker=broker))
        outage = session.folder / "outage"
        outage.touch()
        with session.running("consume", "shop", until="Ctrl-C stops"):
            for order in ORDERS:
                session.run(f"redrive publish orders {shlex.quote(order)}")
            end = time.monotonic() + _TIMEOUT_S
            while len(letters := session.letters()) < len(ORDERS) - 1:
                if time.monotonic() > end:
                    raise SystemExit("the letters did not arrive")
                time.sleep(0.5)
            for command in COMMANDS:
                command = command.format(letter=letters[-1])  # noqa: PLW2901  the one that is shown
                if " replay " in command:
                    outage.unlink()
                yield command, session.run(command)


def _without_downloads(picture: str) -> str:
    """The picture with a font of the reader's machine instead of one from the network."""
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    return re.sub(r"<!--.*?-->\s*", "", picture, flags=re.DOTALL)


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, force_terminal=True, file=nowhere)
        for command, output in record(Session(Path(folder))):
            console.print(Text("$ ", style="bold green") + Text(command, style="bold"))
            console.print(Text.from_ansi(output.rstrip()), soft_wrap=True)
            console.print()
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(_without_downloads(console.export_svg(title="redrive")), "utf-8")
    print(PICTURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
