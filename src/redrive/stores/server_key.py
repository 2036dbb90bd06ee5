"""The key that lets other processes use the store of a running server.

A server keeps a random key in the file `server.key` of its data directory, which only its account can read. A client
that can read the file, or was given the key by a setting, may use the store: the permissions of the file are the
permissions of the store.

The client asks the server first for the file's path and for a proof that it knows the key (`proof_of`), and sends the
key only if the proof is right. So a process that listens on the port of a stopped server does not get the key.
"""

import hmac
import os
import re
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from redrive.errors import SettingsError
from redrive.private_files import make_private_directory, open_to_others
from redrive.settings.references import resolve

FILE_NAME: Final = "server.key"
_KEY: Final = re.compile(r"[!-~]{16,512}")
_MAX_FILE_BYTES: Final = 1024


class StoreAccess(msgspec.Struct, frozen=True):
    """What a server lets other processes use its store with."""

    key: str
    file: Path | None  # None: the key is a setting, or could not be written

    def allows(self, authorization: str | None) -> bool:
        """Whether this is the `Authorization` header of a client that has the key."""
        given = (authorization or "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, f"Bearer {self.key}".encode())


def open_access(directory: Path, key: str | None) -> StoreAccess:
    """The access that a server grants: by this key, or by the one in its directory, which is created if missing.

    An `OSError` says that the file can be neither read nor written.
    """
    if key is not None:
        return StoreAccess(check_key(key), None)
    file = directory.resolve() / FILE_NAME
    if (known := read_key(file)) is not None:
        for path, mode in open_to_others((file,)):
            raise SettingsError(
                f"{path} can be read by other users (mode {mode:04o}); remove it, so that a new key is created, "
                f"or run chmod 600 {path}"
            )
        return StoreAccess(known, file)
    make_private_directory(file.parent)
    return StoreAccess(_create(file), file)


def _create(file: Path) -> str:
    """A new key in this file, or the key of a server that was quicker; the file is never there without its key."""
    key = secrets.token_urlsafe(32)
    handle, name = tempfile.mkstemp(".tmp", f".{FILE_NAME}-", file.parent)  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="ascii") as temporary:
            temporary.write(f"{key}\n")
            temporary.flush()
            os.fsync(temporary.fileno())
        try:
            os.link(name, file)
        except FileExistsError:
            if (other := read_key(file)) is None:
                raise
            return other
    finally:
        with suppress(OSError):
            Path(name).unlink()
    return key


def read_key(file: Path) -> str | None:
    """The key in a file; None if there is none, or none that this account can read."""
    try:
        with file.open("rb") as opened:
            text = opened.read(_MAX_FILE_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if _KEY.fullmatch(text) else None


def check_key(key: str) -> str:
    """The key of the settings, also if it is kept elsewhere; a `SettingsError` if it is none."""
    try:
        key = resolve(key, os.environ)
    except SettingsError as error:
        raise SettingsError(f"server.key = '{key:.60}' cannot be used: {error}") from None
    if not _KEY.fullmatch(key):
        raise SettingsError("server.key must be 16 to 512 printable ASCII characters without spaces")
    return key


def new_nonce() -> str:
    """What a client asks a server to prove its key with."""
    return secrets.token_hex(16)


def proof_of(key: str, nonce: str) -> str:
    """What only who knows the key can answer to this nonce."""
    return hmac.new(key.encode(), f"redrive store {nonce}".encode(), "sha256").hexdigest()


def is_proof(key: str, nonce: str, proof: str) -> bool:
    """Whether the answer to a nonce is right."""
    return hmac.compare_digest(proof.encode("utf-8", "replace"), proof_of(key, nonce).encode())
