"""Are the right ones let in, and do RabbitMQ's definitions mean here what they mean there?"""

import hashlib
import json
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given, strategies as st

from redrive.broker.users import (
    _CACHE_LIMIT,
    MD5,
    SHA256,
    SHA512,
    TAGS,
    Action,
    Permission,
    Users,
    hash_password,
)
from redrive.errors import SettingsError

# The worked example of RabbitMQ's guide to passwords, and two hashes that real servers exported for "guest".
TEST12 = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
GUESTS = [
    "22tTWcr5Ug2CgSXTZiPUwxXbv3IafPqiqP6nguRZnl0ItzOV",
    "hENva+fxJ7gnmaBK/WhwNHOYbvB53/QjNcqhtF4KqF7p21+x",
]


def some_users() -> Users:
    users = Users()
    users.add("ann", "secret", tags=["administrator"])
    users.add("bob", "hidden")
    return users


def allowed(pattern: str, name: str, action: Action = "read") -> bool:
    users = some_users()
    patterns = dict.fromkeys(("configure", "write", "read"), "") | {action: pattern}
    users.set_permission("bob", "/", **patterns)
    return users.may("bob", "/", action, name)


# Passwords


def test_the_right_password_is_right_and_every_other_is_wrong() -> None:
    users = some_users()

    assert users.check("ann", "secret")
    assert users.check("ann", b"secret")
    assert not users.check("ann", "Secret")
    assert not users.check("ann", "hidden")
    assert not users.check("ann", "")
    assert not users.check("nobody", "secret")
    assert not users.check("nobody", "")
    assert not users.check("", "")


def test_hashes_are_rabbitmqs() -> None:
    assert hash_password("test12", bytes.fromhex("908DC60A")) == TEST12
    users = Users()
    for number, known in enumerate(GUESTS):
        users.add(f"u{number}", password_hash=known)
        assert users.check(f"u{number}", "guest")
        assert not users.check(f"u{number}", "guest ")


def test_a_sha512_hash_is_understood_too() -> None:
    users = Users()
    salted = b64encode(b"salt" + hashlib.sha512(b"saltpass").digest()).decode()
    users.add("u", password_hash=salted, hashing_algorithm=SHA512)

    assert users.check("u", "pass")
    assert not users.check("u", "other")


def test_two_users_with_one_password_have_different_hashes() -> None:
    assert hash_password("same") != hash_password("same")


@given(name=st.text(min_size=1), password=st.text(min_size=1) | st.binary(min_size=1))
def test_odd_names_and_passwords_are_as_good_as_others(name: str, password: str | bytes) -> None:
    users = Users()
    users.add(name, password)
    users.set_permission(name, "/odd % vhost\n", "", ".*", "")

    assert users.check(name, password)
    assert not users.check(name, password[:-1])
    assert users.may(name, "/odd % vhost\n", "write", "queue with\nodd 'name'")


def test_a_user_without_a_password_cannot_log_in_with_one() -> None:
    users = Users()
    users.add("u", password_hash="")

    assert not users.check("u", "")
    assert not users.check("u", "\0")


@pytest.mark.parametrize(
    "given",
    [
        {"password": ""},
        {"password_hash": "eHk="},
        {"password_hash": TEST12[:-4]},
        {"password_hash": b64encode(b"salt").decode()},
        {"password_hash": b64encode(b"salt").decode(), "hashing_algorithm": "unknown"},
        {"password_hash": TEST12, "hashing_algorithm": SHA512},
        {"password_hash": TEST12, "hashing_algorithm": MD5},
        {"password_hash": TEST12, "hashing_algorithm": "unknown"},
    ],
)
def test_password_that_cannot_match_is_accepted_and_never_logs_in(given: dict[str, Any]) -> None:
    users = Users()
    users.add("u", **given)

    assert not any(users.check("u", password) for password in ("", "\0", "test12", "xy"))
    again = Users()
    again.load(users.export())
    assert again.get("u") == users.get("u")


def test_md5_hash_is_understood() -> None:
    users = Users()
    salted = b64encode(b"salt" + hashlib.md5(b"saltpass", usedforsecurity=False).digest()).decode()
    users.add("u", password_hash=salted, hashing_algorithm=MD5)

    assert users.check("u", "pass")
    assert not users.check("u", "other")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "give a password"),
        ({"password": "a", "password_hash": TEST12}, "not both"),
        ({"password_hash": "not base64!"}, "not base64"),
        ({"password_hash": "ключ"}, "not base64"),
    ],
)
def test_a_password_that_cannot_be_used_is_refused_and_changes_nothing(
    given: dict[str, Any], problem: str
) -> None:
    users = some_users()
    version = users.version

    with pytest.raises(SettingsError, match=problem):
        users.add("new", **given)

    assert users.get("new") is None
    assert users.version == version


def test_a_user_needs_a_name() -> None:
    with pytest.raises(SettingsError, match="needs a name"):
        Users().add("", "secret")


def test_a_user_that_is_added_again_keeps_permissions_and_if_none_is_given_the_password() -> None:
    users = some_users()
    users.set_permission("bob", "/", ".*", ".*", ".*")

    users.add("bob", tags=["monitoring", "monitoring"])
    assert users.check("bob", "hidden")
    assert users.may_enter("bob", "/")
    users.add("bob", "new")

    assert users.check("bob", "new")
    assert not users.check("bob", "hidden")
    assert [user.name for user in users.users()] == ["ann", "bob"]


# Tags and where users come from


@pytest.mark.parametrize(
    ("tag", "included"),
    [
        ("administrator", {"administrator", "monitoring", "policymaker", "management"}),
        ("monitoring", {"monitoring", "management"}),
        ("policymaker", {"policymaker", "management"}),
        ("management", {"management"}),
        ("own-word", set()),
    ],
)
def test_a_tag_includes_the_lesser_ones(tag: str, included: set[str]) -> None:
    users = Users()
    users.add("u", "p", tags=[tag])

    assert {wanted for wanted in TAGS if users.has_tag("u", wanted)} == included
    assert users.has_tag("u", tag)
    assert not users.has_tag("nobody", tag)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_guest_may_come_from_this_machine(address: str) -> None:
    assert Users().may_connect("guest", address)


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "0.0.0.0", "::", "::ffff:10.0.0.1", "fe80::1%eth0", "", "localhost"]
)
def test_guest_may_come_from_nowhere_else_but_others_may(address: str) -> None:
    assert not Users().may_connect("guest", address)
    assert Users().may_connect("ann", address)
    assert Users(loopback_only=()).may_connect("guest", address)


# Permissions


@pytest.mark.parametrize(
    ("pattern", "name", "is_allowed"),
    [
        (".*", "anything", True),
        (".*", "", True),
        ("", "anything", False),
        ("", "", False),
        ("^$", "anything", False),
        ("order", "my-orders", True),
        ("^order", "my-orders", False),
        ("^order$", "order", True),
        ("^order$", "orders", False),
        ("^(a|b)-", "b-1", True),
        (r"^amq\.default$", "", True),
        (r"^amq\.default$", "amq.default", True),
        ("^$", "", False),
        ("^(?!amq).*", "amq.direct", False),
        (r"^\w+$", "ключ", False),
    ],
)
def test_a_permission_is_searched_in_the_name(pattern: str, name: str, *, is_allowed: bool) -> None:
    assert allowed(pattern, name) is is_allowed


def test_each_action_has_its_own_expression() -> None:
    users = some_users()
    users.set_permission("bob", "/", "^c", "^w", "^r")

    actions: tuple[Action, ...] = ("configure", "write", "read")
    assert [(users.may("bob", "/", action, "c1")) for action in actions] == [True, False, False]
    assert [(users.may("bob", "/", action, "w1")) for action in actions] == [False, True, False]
    assert [(users.may("bob", "/", action, "r1")) for action in actions] == [False, False, True]


def test_without_a_permission_nothing_is_allowed_and_an_empty_one_only_opens_the_door() -> None:
    users = some_users()
    users.set_permission("bob", "/", "", "", "")

    assert users.may_enter("bob", "/")
    assert not users.may("bob", "/", "read", "q")
    assert not users.may_enter("bob", "other")
    assert not users.may_enter("ann", "/")  # an administrator of the management API, and yet not let in
    assert not users.may("ann", "/", "read", "q")
    assert not users.may("nobody", "/", "read", "q")


@pytest.mark.parametrize(
    "pattern", ["(", "[a", "*", "(?<!a+)b", "(?R)", r"\p{Lu}", "(*UTF)a", "a{99999999999}"]
)
def test_an_expression_that_cannot_be_kept_to_the_letter_is_refused_and_changes_nothing(pattern: str) -> None:
    users = some_users()
    users.set_permission("bob", "/", "a", "b", "c")

    with pytest.raises(SettingsError, match="not a regular expression"):
        users.set_permission("bob", "/", ".*", ".*", pattern)

    assert users.permissions() == [("bob", "/", Permission("a", "b", "c"))]


def test_permissions_are_for_users_that_exist() -> None:
    with pytest.raises(SettingsError, match="no user 'nobody'"):
        some_users().set_permission("nobody", "/", "", "", "")


def test_an_answer_never_outlives_the_change_that_makes_it_wrong() -> None:
    users = some_users()

    def may() -> bool:
        return users.may("bob", "/", "read", "q")

    assert not may()
    users.set_permission("bob", "/", "", "", "q")
    assert may()
    users.set_permission("bob", "/", "", "", "other")
    assert not may()
    users.load({"permissions": [{"user": "bob", "vhost": "/", "configure": "", "write": "", "read": "q"}]})
    assert may()
    assert users.clear_permission("bob", "/")
    assert not users.clear_permission("bob", "/")
    assert not may()
    users.set_permission("bob", "/", "", "", "q")
    assert may()
    assert users.forget_vhost("/") == 1
    assert not may()
    users.set_permission("bob", "/", "", "", "q")
    assert may()
    assert users.delete("bob")
    assert not users.delete("bob")
    assert not may()
    assert users.permissions() == []
    users.add("bob", "again")
    assert not may()


def test_clients_cannot_make_the_cache_grow_without_end() -> None:
    users = some_users()
    users.set_permission("bob", "/", "", "", "^q")

    assert all(users.may("bob", "/", "read", f"q{n}") for n in range(_CACHE_LIMIT + 10))
    assert len(users._answers) <= _CACHE_LIMIT


# Definitions


DEFINITIONS: dict[str, Any] = {
    "rabbit_version": "3.10.8",
    "users": [
        {
            "name": "guest",
            "password_hash": GUESTS[0],
            "hashing_algorithm": SHA256,
            "tags": ["administrator"],
            "limits": {},
        },
        {"name": "old", "password_hash": GUESTS[1], "tags": "monitoring, policymaker"},
        {"name": "plain", "password": "p", "tags": ""},
    ],
    "permissions": [{"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
    "topic_permissions": [{"user": "guest", "vhost": "/", "exchange": "t", "write": "a", "read": "b"}],
    "queues": [],
}


def test_definitions_of_rabbitmq_are_understood() -> None:
    users = some_users()
    users.load(DEFINITIONS)

    assert users.check("guest", "guest")
    assert users.check("old", "guest")
    assert users.check("plain", "p")
    assert users.check("ann", "secret")
    assert users.has_tag("old", "monitoring")
    assert users.has_tag("old", "policymaker")
    assert users.may("guest", "/", "write", "")


def test_what_is_exported_can_be_imported_and_is_the_same_again() -> None:
    users = some_users()
    users.load(DEFINITIONS)
    exported = json.loads(json.dumps(users.export()))
    again = Users()
    again.load(exported)

    assert again.export() == users.export()
    assert exported["users"][2] == DEFINITIONS["users"][0]
    assert exported["permissions"] == DEFINITIONS["permissions"]


@pytest.mark.parametrize(
    ("section", "entry", "problem"),
    [
        ("users", {"name": "u"}, "give a password"),
        ("users", {"password": "p"}, "'name' in 'users' must be a string"),
        ("users", {"name": "u", "password": 123456}, "not int"),
        ("users", {"name": "u", "password": "p", "tags": [1]}, "'tags'"),
        ("users", {"name": "u", "password_hash": None}, "'password_hash'"),
        ("users", "u", "must be a list of objects"),
        ("permissions", {"user": "guest", "vhost": "/", "configure": "", "write": ""}, "'read'"),
        ("permissions", {"user": "x", "vhost": "/", "configure": "", "write": "", "read": ""}, "no user"),
        (
            "permissions",
            {"user": "guest", "vhost": "/", "configure": "(", "write": "", "read": ""},
            "expression",
        ),
    ],
)
def test_definitions_with_a_mistake_change_nothing_at_all(section: str, entry: object, problem: str) -> None:
    users = some_users()
    before, version = users.export(), users.version

    with pytest.raises(SettingsError, match=problem) as refused:
        users.load(DEFINITIONS | {section: [*DEFINITIONS[section], entry]})

    assert users.export() == before
    assert users.version == version
    assert "123456" not in str(refused.value)


def test_a_section_that_is_no_list_is_refused() -> None:
    with pytest.raises(SettingsError, match="'users' must be a list"):
        Users().load({"users": {"guest": {}}})
