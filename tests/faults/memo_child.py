"""The child of test_memos_killed: adds lines to one memo, until somebody kills it.

`python memo_child.py STORE_URL NAME`; it says `open`, waits for a word, and then says the version and the line of each
write, after it was acknowledged and only then.
"""

import asyncio
import os
import sys

from redrive.settings import StoreOptions
from redrive.stores import open_store


async def main(url: str, name: str) -> None:
    store = await open_store(StoreOptions(url=url))
    os.write(1, b"open\n")
    await asyncio.to_thread(os.read, 0, 1)
    number = 0
    while True:
        memo = await store.recall("lines")
        line = f"{name}/{number}"
        if await store.remember("lines", (memo.body or b"") + f"{line}\n".encode(), version=memo.version):
            os.write(1, f"{memo.version + 1} {line}\n".encode())
            number += 1


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
