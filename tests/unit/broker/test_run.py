"""A broker as its data directory says it was."""

import re
import shutil
from pathlib import Path

import pytest

from redrive.broker.core import NODE_NAME
from redrive.broker.policies import Policy
from redrive.broker.run import BrokerOptions, start
from redrive.broker.users import Permission


async def cluster_name(data: Path | None) -> str:
    """The name that a broker on this directory announces; it is stopped afterwards."""
    server = await start(BrokerOptions(data=data))
    name = server.broker.cluster_name
    assert server.broker.properties["cluster_name"] == name
    assert server.broker.node_name == NODE_NAME
    await server.close()
    return name


async def test_cluster_name_is_another_one_for_each_broker(tmp_path: Path) -> None:
    names = [await cluster_name(data) for data in (None, None, tmp_path / "one", tmp_path / "two")]
    assert len(set(names)) == 4
    assert all(re.fullmatch(r"redrive@[0-9a-f-]{36}", name) for name in names)


async def test_cluster_name_is_kept_in_the_data_directory(tmp_path: Path) -> None:
    first = await cluster_name(tmp_path / "data")
    assert [await cluster_name(tmp_path / "data") for _ in range(2)] == [first, first]


async def test_cluster_name_is_on_disk_before_the_broker_listens(tmp_path: Path) -> None:
    server = await start(BrokerOptions(data=tmp_path / "data"))
    shutil.copytree(tmp_path / "data", tmp_path / "as after a crash")
    assert await cluster_name(tmp_path / "as after a crash") == server.broker.cluster_name
    await server.close()


async def test_cluster_name_that_was_set_is_kept(tmp_path: Path) -> None:
    server = await start(BrokerOptions(data=tmp_path / "data"))
    server.broker.rename_cluster("shop")
    await server.close()
    assert await cluster_name(tmp_path / "data") == "shop"


async def test_stored_pattern_that_is_refused_now_does_not_keep_the_broker_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = await start(BrokerOptions(data=tmp_path / "data"))
    broker, vhost = server.broker, server.broker.vhosts["/"]
    vhost.policies.put(Policy("/", "p", "(?R)", definition={"max-length": 1}), is_stored=True)
    vhost.policies_changed(server.clock())
    broker.users.add("u", "secret")
    broker.users._permissions["u", "/"] = Permission("(?R)", "", ".*")
    broker.users_changed()
    await server.close()

    server = await start(BrokerOptions(data=tmp_path / "data"))
    broker, vhost = server.broker, server.broker.vhosts["/"]
    assert [policy.pattern for policy in vhost.policies.list()] == ["(?R)"]
    assert vhost.policies.effective("queue", "q") is None
    assert not broker.users.may("u", "/", "configure", "q")
    assert broker.users.may("u", "/", "read", "q")
    assert "pattern matches nothing owner=policy p in vhost / pattern='(?R)'" in caplog.text
    await server.close()
