"""Who vouches for a server that a test has started?

Certificates that sign themselves, made by `openssl` for two days, for this machine by name and by address.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificate(folder: Path, name: str, subject: str) -> None:
    """Put `NAME.pem` and `NAME.key` into the folder, for this subject."""
    if shutil.which("openssl") is None:
        missing = "openssl is not installed"
        if os.environ.get("REDRIVE_REQUIRE_SERVICES"):
            pytest.fail(missing)
        pytest.skip(missing)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", f"/CN={subject}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
