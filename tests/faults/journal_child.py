"""The child of test_journal_crash: a load on one journal, until somebody kills it.

It writes lines to standard output after each flush, saying what is durable since then, and only then: a message that
was published (`+ place`), one that was settled (`- place`), a definition (`= number`). Lines before the flush say what
is about to be tried (`? …`), so that the parent knows what may be there although nobody was told.
"""

import os
import random
import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from redrive.broker.journal import Journal
from redrive.broker.journal_errors import JournalError


def body_of(place: int) -> bytes:
    return b"%d:" % place + bytes(place % 251 for _ in range(place % 3000))


def main(path: str, seed: int) -> None:
    chance = random.Random(seed)
    journal, recovered = Journal.open(Path(path), segment_bytes=40_000, compact_above=2)
    live = [(entry.number, entry.place) for queue in recovered.queues.values() for entry in queue]
    place = recovered.next_place
    written = int(recovered.definitions.get("written", b"0"))
    os.write(1, b"open\n")
    said: list[str] = []
    with ThreadPoolExecutor(1) as disk:
        while True:
            for _ in range(chance.randint(1, 40)):
                journal.publish(place, 1, place, 0, "ex", ("key",), b"header", body_of(place))
                live.append((place, place))
                said.append(f"+ {place}")
                place += 1
            chance.shuffle(live)
            while len(live) > chance.randint(20, 60):
                number, gone = live.pop()
                journal.settle(1, number)
                said.append(f"- {gone}")
            written += 1
            journal.put_definition("written", b"%d" % written)
            said.append(f"= {written}")
            os.write(1, "".join(f"? {line}\n" for line in said).encode())
            flush = disk.submit(journal.flush)
            acknowledged, said = said, []
            journal.compact_step(chance.choice([500, 5_000, 50_000]))  # while the other thread writes
            flush.result()
            os.write(1, "".join(f"{line}\n" for line in acknowledged).encode())


def fill(path: str, limit: int) -> None:
    """Publish until a file may not grow any more, then say what was acknowledged and how it ended."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    journal, _ = Journal.open(Path(path))
    place = 0
    try:
        while True:
            place += 1
            journal.publish(place, 1, place, 0, "ex", ("key",), b"header", body_of(place))
            journal.flush()
    except JournalError as error:
        sys.stdout.write(f"{place - 1}\n{type(error).__name__} {error}\n")
    try:
        journal.flush()
    except JournalError as error:
        sys.stdout.write(f"{type(error).__name__} {error}\n")
    journal.close()


if __name__ == "__main__":
    if sys.argv[1] == "fill":
        fill(sys.argv[2], int(sys.argv[3]))
    else:
        main(sys.argv[1], int(sys.argv[2]))
