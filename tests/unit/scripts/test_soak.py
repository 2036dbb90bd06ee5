"""`scripts/soak.py` repeats parts with fresh seeds, adds up what they report, and says how to repeat a finding."""

import json
import random
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests import soak as long_tests

SCRIPT = Path(__file__).parents[3] / "scripts" / "soak.py"
REPORT = (
    "import json, os;"
    "open(os.environ['REDRIVE_SOAK_REPORT'], 'a').write(json.dumps({'kills': 2, 'acknowledged': 7, 'lost': LOST}))"
)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = spec_from_file_location("soak_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def a_part(script: ModuleType, name: str, program: str, seconds: int = 0) -> Any:
    return script.Part(
        name, lambda seed: [sys.executable, "-c", f"SEED = {seed}\n{program}"], seconds=seconds
    )


def run(script: ModuleType, *parts: Any, seconds: float = 2.0) -> Any:
    soak = script.Soak(list(parts), seconds / 60, random.Random(1))
    soak.run(jobs=2)
    return soak.result


def test_soak_adds_up_the_reports_of_all_runs(script: ModuleType) -> None:
    result = run(script, a_part(script, "kills", REPORT.replace("LOST", "0"), seconds=1))
    assert result.runs["kills"] >= 1
    assert result.counts["kills"] == 2 * result.runs["kills"]
    assert result.counts["acknowledged"] == 7 * result.runs["kills"]
    assert not result.findings


def test_soak_reports_a_failed_part_with_its_seed_and_the_command_to_repeat_it(script: ModuleType) -> None:
    result = run(
        script, a_part(script, "broken", "raise SystemExit('broken by seed ' + str(SEED))", seconds=1)
    )
    first = result.findings[0]
    assert first["part"] == "broken"
    assert first["output"] == [f"broken by seed {first['seed']}"]
    assert first["repeat"].startswith("python -c")
    assert str(first["seed"]) in first["repeat"]
    assert len({finding["seed"] for finding in result.findings}) == len(result.findings), "seeds are fresh"


def test_soak_leaves_out_parts_whose_services_are_missing(script: ModuleType) -> None:
    result = run(script, a_part(script, "skipped", "raise SystemExit(5)", seconds=1))
    assert not result.runs
    assert not result.findings


def test_soak_stops_parts_that_do_not_end(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "GRACE_S", 0)
    result = run(script, a_part(script, "endless", "import time; time.sleep(600)"), seconds=0.1)
    assert set(result.interrupted) == {"endless"}
    assert not result.findings


def test_soak_prints_one_json_object(script: ModuleType) -> None:
    words = ["--minutes", "0.05", "--jobs", "1", "--only", "simulation", "--seed", "3"]
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["seed"] == 3
    assert answer["seeds"] % script.SIMULATION_SEEDS == 0
    assert answer["seeds"] > 0
    assert {"kills", "inputs", "acknowledged", "lost", "duplicated"} <= answer.keys()
    assert answer["findings"] == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--minutes", "0"], "must be greater than 0"),
        (["--jobs", "0"], "--jobs must be at least 1"),
        (["--only", "nothing"], "parts: simulation, "),
    ],
)
def test_soak_refuses_wrong_options(words: list[str], says: str) -> None:
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert says in done.stderr


def test_seeds_are_fixed_without_a_soak_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_tests, "_SEED", "")
    assert long_tests.seed(7) == 7
    monkeypatch.setattr(long_tests, "_SEED", "1")
    first = long_tests.seed(7)
    assert first == long_tests.seed(7) != long_tests.seed(8)
    monkeypatch.setattr(long_tests, "_SEED", "2")
    assert long_tests.seed(7) != first
