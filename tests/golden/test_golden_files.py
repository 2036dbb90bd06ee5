"""Archive and export files written by earlier versions are read and imported completely."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.golden.plain import check, read_json
from tests.golden.reading import file_content

V1 = Path(__file__).parent / "v1"
RECORDED: dict[str, Any] = read_json(V1 / "files.json.zst")


@pytest.mark.parametrize("name", RECORDED)
async def test_letters_file_of_version_1_is_read_completely(name: str, tmp_path: Path) -> None:
    path = tmp_path / Path(name).name
    shutil.copy(V1 / name, path)
    check(RECORDED[name], await file_content(path))


def test_every_file_is_recorded() -> None:
    files = {path for folder in ("archive", "export") for path in (V1 / folder).rglob("*") if path.is_file()}
    assert {str(path.relative_to(V1)) for path in files} == RECORDED.keys()
    assert len({letter["state"] for letter in RECORDED["export/all-states.jsonl.zst"]["letters"]}) == 6
