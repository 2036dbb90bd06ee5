"""What `redrive` shows is what it has, and importing it costs nothing that is not used."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import redrive
from redrive._version import __version__

SOURCE = ast.parse(Path(redrive.__file__).read_text("utf-8"))


def names_for_type_checkers() -> dict[str, set[str]]:
    """Room → names, as the block that only type checkers read imports them."""
    blocks = [
        node
        for node in SOURCE.body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    return {
        str(node.module): {alias.asname or alias.name for alias in node.names}
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
    }


def test_all_is_what_dir_shows() -> None:
    assert dir(redrive) == sorted(redrive.__all__)
    assert len(set(redrive.__all__)) == len(redrive.__all__)


@pytest.mark.parametrize("name", redrive.__all__)
def test_every_public_name_resolves_to_the_thing_in_its_room(name: str) -> None:
    found = getattr(redrive, name)
    if name == "__version__":
        assert found == __version__
        return
    assert found is getattr(import_module(redrive._ROOM_OF[name]), name)
    assert callable(found)


def test_type_checkers_see_the_same_names_in_the_same_rooms() -> None:
    assert names_for_type_checkers() == {room: set(names) for room, names in redrive._ROOMS.items()}


def test_every_name_has_one_room_and_is_public() -> None:
    listed = [name for names in redrive._ROOMS.values() for name in names]
    assert len(listed) == len(set(listed))
    assert {*listed, "__version__"} == set(redrive.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'redrive' has no attribute 'Lettr'"):
        redrive.Lettr  # noqa: B018  looking is the test
    assert not hasattr(redrive, "nothing")


def test_importing_the_package_imports_no_library() -> None:
    code = (
        "import redrive, sys\n"
        "print(*sorted(name for name in sys.modules if name.startswith('redrive')), 'msgspec' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["redrive", "redrive._version", "False"]
