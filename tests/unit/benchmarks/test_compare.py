"""The comparison of two commits: arguments, figures, ratios, the temporary worktree and the import check."""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import BENCHMARKS, compare
from benchmarks.case import Figure, Speed, figures_of, less_is_better
from benchmarks.compare import CompareError, Key, Round, Side

RATE = Key("adds", "letters/s")
TIME = Key("claims", "ms")
CPU = Key("consume", "CPU us/message")
SPEED = Key("consume", "messages/s")


# --- arguments --------------------------------------------------------------------------------------------


def test_parse_defaults_to_all_benchmarks_and_five_rounds() -> None:
    options = compare.parse(["HEAD"])
    assert options.names == sorted(BENCHMARKS.keys() - {"migrate"}), (
        "an earlier commit has nothing to migrate to"
    )
    assert (options.rounds, options.quick) == (5, False)


def test_parse_keeps_the_given_order_and_drops_repeated_names() -> None:
    options = compare.parse(["HEAD", "recover", "broker", "recover", "--quick", "--rounds", "3"])
    assert options.names == ["recover", "broker"]
    assert (options.rounds, options.quick) == (3, True)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "required: REV"),
        (["HEAD", "brokr"], "unknown benchmark: brokr; known: alert-latency, broker, consume"),
        (["HEAD", "--rounds", "0"], "--rounds must be at least 1, got 0"),
        (["HEAD", "--rounds", "many"], "invalid int value: 'many'"),
    ],
)
def test_parse_exits_with_2_and_a_reason_when_arguments_are_wrong(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        compare.parse(arguments)
    assert stopped.value.code == 2
    assert reason in capsys.readouterr().err


# --- figures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "less"),
    [
        ("messages/s", False),
        ("letters/s", False),
        ("ms", True),
        ("s", True),
        ("MB", True),
        ("CPU us/message", True),
    ],
)
def test_less_is_better_in_all_units_but_rates(unit: str, *, less: bool) -> None:
    assert less_is_better(unit) is less


def test_figures_of_gives_the_median_cpu_time_before_the_median_rate() -> None:
    runs = [Speed(rate=100, cpu=3e-6), Speed(rate=900, cpu=1e-6), Speed(rate=200, cpu=2e-6)]
    found = list(figures_of("consume", runs, "messages/s"))
    assert found == [Figure("consume", 2.0, "CPU us/message"), Figure("consume", 200, "messages/s")]
    assert list(figures_of("consume", [], "messages/s")) == []


def test_read_takes_lines_of_figures_and_skips_everything_else() -> None:
    output = "\n".join(
        [
            Figure("adds", 12.5, "letters/s").line("store-sqlite"),
            "3",
            "a note",
            "{}",
            '{"case": "x", "unit": "y"}',
        ]
    )
    assert compare.read(output) == {RATE: 12.5}


def test_read_takes_our_figure_once_when_a_case_has_several_peers() -> None:
    lines = [
        json.dumps({"case": "adds", "ours": 7, "peer": peer, "peer_name": "pika", "unit": "letters/s"})
        for peer in (3, 4)
    ]
    assert compare.read("\n".join(lines)) == {RATE: 7.0}


def test_missing_lists_cases_that_the_other_side_has_in_no_unit() -> None:
    both = Round(ours={RATE: 1, CPU: 1, SPEED: 1, TIME: 1}, theirs={SPEED: 1, Key("adds", "MB"): 1})
    assert compare.missing(both) == ["adds", "claims"]


# --- ratios -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [RATE, TIME])
def test_ratio_is_above_one_when_ours_is_better(key: Key) -> None:
    better, worse = (20, 10) if key is RATE else (10, 20)
    [case] = compare.summarize([Round({key: better}, {key: worse})], "abc1234")
    assert case.ratio == 2.0


def test_summary_has_the_medians_of_the_rounds_and_the_median_of_their_ratios() -> None:
    # The machine was slow in the second round, for both.
    rounds = [Round({RATE: 10}, {RATE: 10}), Round({RATE: 4}, {RATE: 5}), Round({RATE: 18}, {RATE: 20})]
    [case] = compare.summarize(rounds, "abc1234")
    assert json.loads(case.line("store-sqlite")) == {
        "benchmark": "store-sqlite",
        "case": "adds",
        "ours": 10,
        "peer": 10,
        "peer_name": "abc1234",
        "ratio": 0.9,
        "asked": 0.95,
        "unit": "letters/s",
    }


def test_summary_prefers_cpu_time_and_takes_the_rate_when_the_other_side_has_no_cpu_time() -> None:
    ours = {CPU: 10.0, SPEED: 300.0}
    [case] = compare.summarize([Round(ours, {SPEED: 100, CPU: 20})], "abc1234")
    assert (case.unit, case.ratio) == (CPU.unit, 2.0)
    [case] = compare.summarize([Round(ours, {SPEED: 100})], "abc1234")
    assert (case.unit, case.ratio) == (SPEED.unit, 3.0)


def test_summary_leaves_out_rounds_and_cases_that_one_side_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    rounds = [Round({RATE: 10, TIME: 1}, {}), Round({RATE: 10, TIME: 1}, {RATE: 5})]
    [case] = compare.summarize(rounds, "abc1234")
    assert (case.name, case.ratios) == ("adds", (2.0,))
    assert "claims: left out, because abc1234 has no figure for it" in capsys.readouterr().err


def test_sides_take_turns() -> None:
    ours, theirs = Side("ours", Path("a"), Path("a")), Side("theirs", Path("b"), Path("a"))
    order = [side.name for number in (1, 2, 3) for side in compare.turn(ours, theirs, number)]
    assert order == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]


# --- the other commit -------------------------------------------------------------------------------------

Repository = tuple[Path, Callable[..., str]]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """A repository with one commit that holds a package and benchmark files, and git in it."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    place = tmp_path / "repository"
    for file in ("src/redrive/__init__.py", "benchmarks/__init__.py"):
        (place / file).parent.mkdir(parents=True)
        (place / file).write_text("")

    def git(*words: str) -> str:
        author = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", *author, *words], cwd=place, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "First")
    yield place, git
    assert list(temporary.iterdir()) == []
    assert len(git("worktree", "list").splitlines()) == 1


def test_resolve_gives_the_short_hash_of_a_commit(repository: Repository) -> None:
    place, git = repository
    assert compare.resolve(place, "HEAD") == git("rev-parse", "--short", "HEAD")


@pytest.mark.parametrize("revision", ["nonsense", "HEAD~1", "HEAD:src", ""])
def test_resolve_names_the_revision_when_it_is_no_commit(repository: Repository, revision: str) -> None:
    with pytest.raises(CompareError, match=f"^'{revision}' is not a commit of "):
        compare.resolve(repository[0], revision)


def test_main_exits_with_2_when_the_revision_is_no_commit(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare, "ROOT", repository[0])
    assert compare.main(["nonsense"]) == 2
    assert "error: 'nonsense' is not a commit" in capsys.readouterr().err


def test_main_exits_with_2_when_there_is_no_place_for_a_worktree(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare, "ROOT", repository[0])
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(repository[0] / "missing"))
        assert compare.main(["HEAD"]) == 2
    assert "No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_worktree_is_removed_after_an_error_with_files_in_it(
    repository: Repository, error: type[BaseException]
) -> None:
    place, git = repository
    commit = compare.resolve(place, "HEAD")
    with pytest.raises(error), compare.worktree(place, commit) as tree:  # noqa: PT012  what is left is the subject
        assert (tree / "src" / "redrive" / "__init__.py").exists()
        assert len(git("worktree", "list").splitlines()) == 2
        (tree / "figures.db").write_text("not tracked")
        raise error


def test_worktree_says_what_to_remove_when_git_cannot(repository: Repository) -> None:
    place, git = repository
    with (
        pytest.raises(CompareError, match=r"worktree remove failed: .* run 'git worktree prune'"),
        compare.worktree(place, compare.resolve(place, "HEAD")) as tree,
    ):
        (tree / ".git").unlink()
    git("worktree", "prune")


def test_services_are_linked_into_the_worktree_when_they_are_installed(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    (ours / ".services" / "rabbitmq-4.3").mkdir(parents=True)
    theirs.mkdir()
    for _ in range(2):
        compare.link_services(ours, theirs)
    assert (theirs / ".services" / "rabbitmq-4.3").is_dir()


def test_check_imports_accepts_the_package_of_the_side(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    place, _ = repository
    compare.check_imports(Side("abc1234", place, compare.ROOT))
    assert f"abc1234: redrive is {place / 'src' / 'redrive'}" in capsys.readouterr().err


def test_check_imports_fails_when_the_installed_package_is_imported(repository: Repository) -> None:
    place, _ = repository
    (place / "src" / "redrive" / "__init__.py").unlink()
    (place / "src" / "redrive").rmdir()
    with pytest.raises(
        CompareError, match=r"abc1234: Python imports .*src/redrive instead of .*; check PYTHONPATH"
    ):
        compare.check_imports(Side("abc1234", place, compare.ROOT))


def test_check_imports_gives_the_error_of_a_package_that_cannot_be_imported(repository: Repository) -> None:
    place, _ = repository
    (place / "src" / "redrive" / "__init__.py").write_text("raise ImportError('no such module')")
    with pytest.raises(CompareError, match="abc1234 cannot be imported: ImportError: no such module"):
        compare.check_imports(Side("abc1234", place, compare.ROOT))


def test_command_leaves_the_peers_out_when_the_benchmark_files_can(tmp_path: Path) -> None:
    main = tmp_path / "benchmarks" / "__main__.py"
    main.parent.mkdir()
    main.write_text("")
    assert Side("old", tmp_path, tmp_path).command("broker", quick=True)[-2:] == ["broker", "--quick"]
    assert Side("new", tmp_path, compare.ROOT).command("broker", quick=False)[-2:] == [
        "broker",
        "--only-ours",
    ]


# --- rounds -----------------------------------------------------------------------------------------------


def commit_of(place: Path, package: str, figure: str) -> Path:
    """A tree whose benchmark prints one figure: an expression over the package that is imported."""
    for name, text in {
        "src/redrive/__init__.py": package,
        "benchmarks/__init__.py": "",
        "benchmarks/__main__.py": "import json, redrive\n"
        f"print(json.dumps({{'case': 'adds', 'unit': 'letters/s', 'ours': {figure}}}))\n",
    }.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


def test_compare_runs_our_benchmark_files_with_both_packages(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ours = commit_of(tmp_path / "ours", "RATE = 30", "redrive.RATE")
    theirs = commit_of(tmp_path / "theirs", "RATE = 20", "1")
    sides = Side("this checkout", ours, ours), Side("abc1234", theirs, ours)
    assert compare.compare("broker", *sides, quick=True, rounds=2)
    [line] = capfd.readouterr().out.splitlines()
    case = json.loads(line)
    assert (case["ours"], case["peer"], case["peer_name"], case["ratio"]) == (30, 20, "abc1234", 1.5)


def test_compare_runs_their_benchmark_files_when_ours_do_not_work_with_their_package(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ours = commit_of(tmp_path / "ours", "RATE = 30", "redrive.RATE")
    theirs = commit_of(tmp_path / "theirs", "OLD_RATE = 10", "redrive.OLD_RATE")
    sides = Side("this checkout", ours, ours), Side("abc1234", theirs, ours)
    assert compare.compare("broker", *sides, quick=True, rounds=2)
    captured = capfd.readouterr()
    assert json.loads(captured.out)["ratio"] == 3.0
    assert "abc1234 has no figures for 1 of our cases; trying its own files" in captured.err


def test_compare_leaves_a_benchmark_out_after_one_round_when_a_side_has_no_figures(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ours = commit_of(tmp_path / "ours", "RATE = 30", "redrive.RATE")
    theirs = commit_of(tmp_path / "theirs", "", "redrive.RATE")
    sides = Side("this checkout", ours, ours), Side("abc1234", theirs, ours)
    assert not compare.compare("broker", *sides, quick=True, rounds=2)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "broker: left out, because this checkout and abc1234 have no figures in common" in captured.err
    assert "round 2" not in captured.err
