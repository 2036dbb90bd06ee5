"""Several `redrive serve` on one PostgreSQL: they share the work, and the command line works on the same database."""

import json
import textwrap
import urllib.parse
from collections import Counter
from pathlib import Path

from redrive.letters import LetterState
from redrive.stores.postgres import PostgresStore
from redrive.testing import letters
from tests.acceptance.serving import QUICK, Process, channel, redrive, serving, until
from tests.services import Postgres, PostgresServer

ORDERS = 12  # fewer than make a flood: no breaker pauses the shop
SHOP = """
    from pathlib import Path
    from redrive import App, Context

    app = App({url!r})

    @app.consume("orders", concurrency=1)
    async def handle(body: bytes, context: Context) -> None:
        seen = Path("seen")
        again = seen.exists() and body.decode() in seen.read_text().splitlines()
        with seen.open("a") as file:
            file.write(body.decode() + "\\n")
        if not again:
            raise TimeoutError("the bank did not answer")
"""


async def test_two_servers_share_one_database_and_nothing_is_sent_back_twice(
    tmp_path: Path, postgres: Postgres
) -> None:
    settings = textwrap.dedent(QUICK) + f'\n[store]\nurl = "{postgres.url}"\n'
    named = settings + '\n[broker]\nname = "embedded"\n'  # what the first one calls its broker
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with (
        serving(tmp_path / "one", settings=settings) as one,
        serving(tmp_path / "two", "--broker", one.broker, settings=named) as two,
    ):
        password = urllib.parse.urlsplit(postgres.url).password or ""
        assert one.store_url.startswith("postgresql://")
        assert password not in one.store_url
        (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP.format(url=one.broker)))
        shop = Process(tmp_path, "consume", "shop")
        try:
            shop.until_it_says("redrive consume")
            with channel(one.broker) as amqp:
                for number in range(ORDERS):
                    amqp.basic_publish("", "orders", f"order {number}".encode())
            done = f"SELECT count(*) = {ORDERS} FROM redrive.states WHERE state = '{LetterState.RESOLVED}'"
            until(lambda: postgres.psql(done) == "t", "all letters are resolved")
        finally:
            assert shop.end() == 0
        workers = postgres.psql("SELECT DISTINCT worker FROM redrive.attempts").splitlines()
        assert {worker.split("/")[1] for worker in workers} <= {str(one.process.pid), str(two.process.pid)}
        assert two.end() == 0
        assert one.end() == 0
    seen = Counter((tmp_path / "seen").read_text().splitlines())
    assert seen == {f"order {number}": 2 for number in range(ORDERS)}
    assert (
        postgres.psql("SELECT count(*), min(dlq_retry_count), max(dlq_retry_count) FROM redrive.states")
        == f"{ORDERS}|1|1"
    )


def test_a_server_goes_on_by_itself_when_its_database_was_restarted(
    tmp_path: Path, own_postgres: PostgresServer
) -> None:
    settings = textwrap.dedent(QUICK) + f'\n[store]\nurl = "{own_postgres.url}"\n'

    def resolved(count: int) -> bool:
        found = f"SELECT count(*) FROM redrive.states WHERE state = '{LetterState.RESOLVED}'"
        return own_postgres.psql(found) == str(count)

    with serving(tmp_path, settings=settings) as server:
        (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP.format(url=server.broker)))
        shop = Process(tmp_path, "consume", "shop")
        try:
            shop.until_it_says("redrive consume")
            with channel(server.broker) as amqp:
                amqp.basic_publish("", "orders", b"before")
                until(lambda: resolved(1), "the first letter is resolved")
                own_postgres.stop()
                amqp.basic_publish("", "orders", b"meanwhile")  # dies and lies in its queue
                own_postgres.start()
                amqp.basic_publish("", "orders", b"after")
                until(lambda: resolved(3), "all letters are resolved")
        finally:
            assert shop.end() == 0
        assert server.health()[0] == 200
        assert server.end() == 0
    seen = Counter((tmp_path / "seen").read_text().splitlines())
    assert seen == {"before": 2, "meanwhile": 2, "after": 2}


async def test_the_command_line_works_on_a_database_and_never_shows_its_password(
    tmp_path: Path, postgres: Postgres
) -> None:
    store = await PostgresStore.open(postgres.url)
    await store.add(letters(3))
    await store.close()
    password = urllib.parse.urlsplit(postgres.url).password or ""
    for words in (
        ["list"], ["list", "state:pending", "--json"], ["show", letters(1)[0].id], ["stats"], ["groups"],
        ["store", "check"], ["config", "show"], ["config", "check"],
    ):  # fmt: skip
        done = redrive(tmp_path, *words, REDRIVE_STORE_URL=postgres.url)
        assert (done.returncode, done.stderr) == (0, ""), words
        assert password not in done.stdout, words
    checked = redrive(tmp_path, "store", "check", "--json", REDRIVE_STORE_URL=postgres.url)
    assert json.loads(checked.stdout)["letters"] == 3


def test_the_command_line_says_in_one_line_that_no_server_is_there(tmp_path: Path) -> None:
    done = redrive(tmp_path, "list", REDRIVE_STORE_URL="postgresql://bob:hunter2@127.0.0.1:1/shop")
    assert done.returncode == 3
    assert done.stderr.startswith("redrive: postgresql://127.0.0.1:1/shop is unreachable")
    assert done.stderr.count("\n") == 1
