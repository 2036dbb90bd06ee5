"""The wheel and the source distribution contain what running needs, and their metadata is complete."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from configparser import ConfigParser
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from redrive._version import __version__

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
INFO = f"redrive-{__version__}.dist-info"
# Import names of packages that only extras install.
OPTIONAL = (
    "asyncpg",
    "confluent_kafka",
    "hypothesis",
    "opentelemetry",
    "pika",
    "pytest",
    "sphinx",
    "zstandard",
)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the source distribution of this tree."""
    directory = tmp_path_factory.mktemp("dist")
    build = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert build.returncode == 0, build.stderr
    return directory


@pytest.fixture(scope="module")
def unpacked(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the content of the wheel."""
    directory = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(distributions / f"redrive-{__version__}-py3-none-any.whl") as wheel:
        wheel.extractall(directory)
    return directory


@pytest.fixture(scope="module")
def metadata(unpacked: Path) -> Message:
    """The METADATA file of the wheel."""
    return message_from_bytes((unpacked / INFO / "METADATA").read_bytes())


def files_in(directory: Path) -> set[str]:
    return {
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def package_of(requirement: str) -> str:
    """The normalised name of the package, as the package index has it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()


def test_wheel_contains_every_file_of_the_package_and_nothing_else(unpacked: Path) -> None:
    package = {f"redrive/{name}" for name in files_in(ROOT / "src" / "redrive")}
    assert {"redrive/py.typed", "redrive/stores/sql/sqlite/0001_letters.sql"} <= package
    information = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    assert files_in(unpacked) == package | {f"{INFO}/{name}" for name in information}


def test_wheel_requires_only_the_core_dependencies_without_an_extra(metadata: Message) -> None:
    required = [row for row in metadata.get_all("Requires-Dist", []) if "extra ==" not in row]
    assert {package_of(row) for row in required} == {package_of(row) for row in PROJECT["dependencies"]}
    assert {"kafka", "otel", "postgres"} <= set(metadata.get_all("Provides-Extra", []))


def test_metadata_has_links_license_and_a_readme_without_relative_links(metadata: Message) -> None:
    urls = dict(row.split(", ") for row in metadata.get_all("Project-URL", []))
    assert {"Changelog", "Documentation", "Issues", "Source"} <= set(urls)
    assert (metadata["License-Expression"], metadata["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    assert metadata["Description-Content-Type"] == "text/markdown"
    links = re.findall(r"\]\(([^)]+)\)", str(metadata.get_payload()))
    assert len(links) > 5
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def test_source_distribution_contains_what_builds_the_wheel(distributions: Path) -> None:
    with tarfile.open(distributions / f"redrive-{__version__}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {name.partition("/")[0] for name in names} == {
        ".gitignore",
        "CHANGELOG.md",
        "LICENSE",
        "PKG-INFO",
        "README.md",
        "pyproject.toml",
        "src",
    }
    assert {f"src/redrive/{name}" for name in files_in(ROOT / "src" / "redrive")} <= names


def test_only_adapters_of_the_wheel_need_the_packages_of_extras(unpacked: Path, tmp_path: Path) -> None:
    """Every module is imported in a process in which importing a package of an extra fails."""
    code = f"""
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys({OPTIONAL!r}))  # with None, importing it raises ModuleNotFoundError
import redrive
print(redrive.__file__)
for module in pkgutil.walk_packages(redrive.__path__, "redrive.", onerror=lambda name: None):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except (ModuleNotFoundError, redrive.RedriveError):
            print(module.name)
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    package, *failed = run.stdout.splitlines()
    assert package == str(unpacked / "redrive" / "__init__.py")
    assert failed
    assert [name for name in failed if not re.search(r"\.(kafka|postgres|testing|tracing|w3c)\b", name)] == []


def test_command_of_the_wheel_prints_its_version(unpacked: Path, tmp_path: Path) -> None:
    points = ConfigParser()
    points.read(unpacked / INFO / "entry_points.txt")
    assert points.sections() == ["console_scripts"]
    module, _, function = points["console_scripts"]["redrive"].partition(":")
    run = subprocess.run(
        [sys.executable, "-c", f"from {module} import {function}; {function}()", "--version"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout, run.stderr) == (f"redrive {__version__}\n", "")
