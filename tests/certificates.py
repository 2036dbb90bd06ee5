"""Who vouches for a server that a test has started?

Certificates that sign themselves, made by `openssl` for two days.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificate(folder: Path, name: str, subject: str, names: str = "DNS:localhost") -> None:
    """Put `NAME.pem`, `NAME.key` and both in one, `NAME-and-key.pem`, into the folder, for this subject."""
    if shutil.which("openssl") is None:
        missing = "openssl is not installed"
        if os.environ.get("REDRIVE_REQUIRE_SERVICES"):
            pytest.fail(missing)
        pytest.skip(missing)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", f"/CN={subject}", "-addext", f"subjectAltName={names}",
         "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    key, certificate = (folder / f"{name}.key").read_text(), (folder / f"{name}.pem").read_text()
    (folder / f"{name}-and-key.pem").write_text(key + certificate)
