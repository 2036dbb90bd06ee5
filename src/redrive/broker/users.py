"""Who may come in, and what may they touch?

Users, their passwords and their permissions per virtual host, as RabbitMQ has them, so that its definitions can be
imported here and ours there. The rule: whatever cannot be understood is refused when it is set, with a
`SettingsError`, and changes nothing; whatever is not allowed explicitly is not allowed.

Passwords are kept as RabbitMQ keeps them: four octets of salt, then the SHA-256 (or SHA-512, or MD5 from before
version 3.6) of salt and password, in base64. That is what its definitions hold and not what one would choose today:
keep the file to yourself. Like RabbitMQ, any base64 is accepted as a hash, and any name as an algorithm; no password
matches a hash of the wrong length or of an unknown algorithm, and an empty password matches none.

Permissions are regular expressions as in RabbitMQ (see `patterns`), searched for in a resource's name; `^` and `$` tie
them to the whole name. One that takes too long to match allows nothing. Topic permissions are left out: an import
skips them. Which virtual hosts exist is not known here.
"""

import hashlib
import hmac
import ipaddress
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from redrive.broker.erlang import erlang_binary
from redrive.broker.patterns import NamePattern, PatternError
from redrive.errors import SettingsError

Action: TypeAlias = Literal["configure", "write", "read"]

SHA256: Final = "rabbit_password_hashing_sha256"
SHA512: Final = "rabbit_password_hashing_sha512"
MD5: Final = "rabbit_password_hashing_md5"
_HASHES: Final[dict[str, Callable[[bytes], bytes]]] = {
    SHA256: lambda octets: hashlib.sha256(octets).digest(),
    SHA512: lambda octets: hashlib.sha512(octets).digest(),
    MD5: lambda octets: hashlib.md5(octets, usedforsecurity=False).digest(),  # kept for hashes that exist
}
_SALT: Final = 4
LIMITS: Final = ("max-connections", "max-channels")  # of a user

# What each tag of the management API includes. Any other tag is kept and means nothing here.
_INCLUDED: Final[dict[str, frozenset[str]]] = {
    "administrator": frozenset({"administrator", "monitoring", "policymaker", "management"}),
    "monitoring": frozenset({"monitoring", "management"}),
    "policymaker": frozenset({"policymaker", "management"}),
    "management": frozenset({"management"}),
}
TAGS: Final = tuple(_INCLUDED)

_DEFAULT_EXCHANGE: Final = "amq.default"  # what the exchange without a name is called in permissions
_NO_NAME: Final = (
    "^$"  # what an empty pattern stands for, as in RabbitMQ: the empty name, which no resource has
)
_CACHE_LIMIT: Final = 10_000  # names come from clients; the cache must not grow with them


class User(NamedTuple):
    """A user as definitions have it. An empty `password_hash`: nobody can log in with a password."""

    name: str
    password_hash: str
    hashing_algorithm: str
    tags: tuple[str, ...]


class Permission(NamedTuple):
    """What a user may do in one virtual host: a regular expression per action."""

    configure: str
    write: str
    read: str


class Users:
    """All users and permissions. `version` grows with every change, for those who keep an answer elsewhere."""

    def __init__(self, loopback_only: Iterable[str] = ("guest",)) -> None:
        self.loopback_only = frozenset(loopback_only)
        self.version = 0
        self._users: dict[str, User] = {}
        self._permissions: dict[tuple[str, str], Permission] = {}
        self._limits: dict[str, dict[str, int]] = {}  # max-connections and max-channels by user
        self._answers: dict[tuple[str, str, Action, str], bool] = {}
        self._patterns: dict[str, NamePattern] = {}  # of permissions that were asked for

    def add(
        self,
        name: str,
        password: str | bytes | None = None,
        *,
        password_hash: str | None = None,
        hashing_algorithm: str = SHA256,
        tags: Iterable[str] = (),
    ) -> User:
        """Adds a user or changes one, whose permissions stay, and whose password stays if none is given."""
        known = self._users.get(name)
        if not name:
            raise SettingsError("a user needs a name")
        if password is not None and password_hash is not None:
            raise SettingsError(f"user '{name}': give a password or a password_hash, not both")
        if password is not None:
            hashing_algorithm = SHA256
            password_hash = hash_password(password)
        elif password_hash is not None:
            _check_hash(name, password_hash)
        elif known is not None:
            password_hash, hashing_algorithm = known.password_hash, known.hashing_algorithm
        else:
            raise SettingsError(f"user '{name}': give a password or a password_hash")
        user = self._users[name] = User(name, password_hash, hashing_algorithm, tuple(dict.fromkeys(tags)))
        self._change()
        return user

    def delete(self, name: str) -> bool:
        """Removes a user and all its permissions; False if there is no such user."""
        if self._users.pop(name, None) is None:
            return False
        self._permissions = {place: held for place, held in self._permissions.items() if place[0] != name}
        self._limits.pop(name, None)
        self._change()
        return True

    def limits(self, name: str) -> Mapping[str, int]:
        """The user's limits by kind; one that is below zero does not limit."""
        return self._limits.get(name, {})

    def set_limit(self, name: str, kind: str, value: object) -> None:
        """Limit the connections or channels of a user."""
        if name not in self._users:
            raise SettingsError(f"limits: there is no user '{name}'; add it first")
        if kind not in LIMITS:
            raise SettingsError(f"Unrecognised terms [{{{_quoted(kind)},{_quoted(value)}}}] in user-limits")
        if not isinstance(value, int) or isinstance(value, bool):
            raise SettingsError(f"{kind} should be a number, actually was {_quoted(value)}")
        self._limits.setdefault(name, {})[kind] = value

    def clear_limit(self, name: str, kind: str) -> None:
        """Remove a limit of a user; one that is not set stays absent."""
        limits = self._limits.get(name, {})
        limits.pop(kind, None)
        if not limits:
            self._limits.pop(name, None)

    def get(self, name: str) -> User | None:
        """The user of that name."""
        return self._users.get(name)

    def users(self) -> list[User]:
        """All users, in the order they were added."""
        return list(self._users.values())

    def check(self, name: str, password: str | bytes) -> bool:
        """Whether this is the user's password. A user that does not exist costs as much work as one that does."""
        user = self._users.get(name)
        stored = b"" if user is None else b64decode(user.password_hash)
        salted = stored[:_SALT].ljust(_SALT, b"\0") + _octets(password)
        digests = {algorithm: digest(salted) for algorithm, digest in _HASHES.items()}
        digest = digests.get(SHA256 if user is None else user.hashing_algorithm, b"")
        is_right = hmac.compare_digest(digest, stored[_SALT:])
        return is_right and user is not None and bool(digest) and bool(password)

    def may_connect(self, name: str, peer_address: str) -> bool:
        """Whether the user may come from there: `guest` only from this machine. An address nobody knows is not it."""
        return name not in self.loopback_only or is_loopback(peer_address)

    def has_tag(self, name: str, tag: str) -> bool:
        """Whether the user has the tag, or one that includes it: an administrator has them all."""
        user = self._users.get(name)
        return user is not None and any(tag == held or tag in _INCLUDED.get(held, ()) for held in user.tags)

    def set_permission(self, user: str, vhost: str, configure: str, write: str, read: str) -> None:
        """Says what the user may do in the virtual host, instead of what was said before."""
        if user not in self._users:
            raise SettingsError(f"permissions in '{vhost}': there is no user '{user}'; add it first")
        permission = Permission(configure, write, read)
        for pattern in permission:
            _check_pattern(pattern)
        self._permissions[user, vhost] = permission
        self._change()

    def clear_permission(self, user: str, vhost: str) -> bool:
        """Shuts the user out of the virtual host; False if it was not let in."""
        if self._permissions.pop((user, vhost), None) is None:
            return False
        self._change()
        return True

    def forget_vhost(self, vhost: str) -> int:
        """Removes all permissions in a virtual host that was deleted, and says how many there were."""
        left = {place: held for place, held in self._permissions.items() if place[1] != vhost}
        gone = len(self._permissions) - len(left)
        self._permissions = left
        self._change()
        return gone

    def permissions(self) -> list[tuple[str, str, Permission]]:
        """User, virtual host and permission, in the order they were first set."""
        return [(user, vhost, held) for (user, vhost), held in self._permissions.items()]

    def may_enter(self, user: str, vhost: str) -> bool:
        """Whether the user may open the virtual host: any permission there, even an empty one, lets it in."""
        return (user, vhost) in self._permissions

    def may(self, user: str, vhost: str, action: Action, resource: str) -> bool:
        """Whether the user may do this to the queue or exchange of that name; `''` is the default exchange."""
        question = (user, vhost, action, resource)
        answer = self._answers.get(question)
        if answer is None:
            if len(self._answers) >= _CACHE_LIMIT:
                self._answers.clear()
            permission = self._permissions.get((user, vhost))
            answer = permission is not None and self._pattern(getattr(permission, action)).search(
                resource or _DEFAULT_EXCHANGE
            )
            self._answers[question] = answer
        return answer

    def _pattern(self, source: str) -> NamePattern:
        pattern = self._patterns.get(source)
        if pattern is None:
            pattern = self._patterns[source] = NamePattern.stored(source or _NO_NAME, "permission")
        return pattern

    def export(self) -> dict[str, list[dict[str, object]]]:
        """`users` and `permissions` as RabbitMQ's definitions have them."""
        return {
            "users": [
                user._asdict() | {"tags": list(user.tags), "limits": dict(self.limits(user.name))}
                for user in self._users.values()
            ],
            "permissions": [
                {"user": user, "vhost": vhost, **held._asdict()} for user, vhost, held in self.permissions()
            ],
        }

    def load(self, definitions: Mapping[str, object], *, is_stored: bool = False) -> None:
        """Adds or changes what RabbitMQ's definitions say of users and permissions: all of it or, on an error, none.

        Patterns that are stored were checked when they were set; one that is wrong by now allows nothing.
        """
        draft = Users()
        draft._users = dict(self._users)
        draft._permissions = dict(self._permissions)
        draft._limits = {name: dict(limits) for name, limits in self._limits.items()}
        for user in _entries(definitions, "users"):
            draft.add(
                _text(user, "users", "name"),
                _text(user, "users", "password")
                if "password" in user and "password_hash" not in user
                else None,
                password_hash=_text(user, "users", "password_hash") if "password_hash" in user else None,
                # Left out by RabbitMQ 3.6.0, whose default it was.
                hashing_algorithm=_text(user, "users", "hashing_algorithm", SHA256),
                tags=_tags(user),
            )
            limits = user.get("limits", {})
            for kind, value in limits.items() if isinstance(limits, Mapping) else ():
                draft.set_limit(_text(user, "users", "name"), str(kind), value)
        for held in _entries(definitions, "permissions"):
            fields = ("user", "vhost", "configure", "write", "read")
            name, vhost, *patterns = (_text(held, "permissions", field) for field in fields)
            if is_stored:
                draft._permissions[name, vhost] = Permission(*patterns)
            else:
                draft.set_permission(name, vhost, *patterns)
        self._users = draft._users
        self._permissions = draft._permissions
        self._limits = draft._limits
        self._change()

    def _change(self) -> None:
        self.version += 1
        self._answers.clear()
        self._patterns.clear()


def hash_password(password: str | bytes, salt: bytes | None = None) -> str:
    """The password as RabbitMQ's definitions hold it, with a fresh salt unless one of four octets is given."""
    salt = secrets.token_bytes(_SALT) if salt is None else salt
    return b64encode(salt + _HASHES[SHA256](salt + _octets(password))).decode()


def _quoted(value: object) -> str:
    """A value of a limit as Erlang prints it."""
    return erlang_binary(value.encode()) if isinstance(value, str) else str(value)


def _octets(password: str | bytes) -> bytes:
    return password.encode("utf-8", "surrogatepass") if isinstance(password, str) else password


def _check_hash(name: str, password_hash: str) -> None:
    try:
        b64decode(password_hash, validate=True)
    except ValueError:
        raise SettingsError(f"user '{name}': the password_hash is not base64") from None


def _check_pattern(pattern: str) -> None:
    try:
        NamePattern(pattern or _NO_NAME)
    except PatternError as problem:
        raise SettingsError(f"the permission '{pattern}' is not a regular expression: {problem}") from None


def is_loopback(address: str) -> bool:
    """Whether the address is one of this machine's own; one that cannot be read is not."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def _entries(definitions: Mapping[str, object], section: str) -> list[Mapping[str, object]]:
    entries = definitions.get(section, [])
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise SettingsError(f"definitions: '{section}' must be a list of objects")
    return entries


def _text(entry: Mapping[str, object], section: str, field: str, default: str | None = None) -> str:
    value = entry.get(field, default)
    if not isinstance(value, str):
        raise SettingsError(
            f"definitions: '{field}' in '{section}' must be a string, not {type(value).__name__}"
        )
    return value


def _tags(user: Mapping[str, object]) -> list[str]:
    """The tags: a list since RabbitMQ 3.9, one string with commas before."""
    tags = user.get("tags", [])
    if isinstance(tags, str):
        return [tag.strip() for tag in tags.split(",") if tag.strip()]
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise SettingsError("definitions: 'tags' in 'users' must be a list of strings")
    return tags
