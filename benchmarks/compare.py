"""Compare this checkout with another commit of the project.

`python -m benchmarks compare REV [NAME ...]` measures redrive alone, without the peers (`--only-ours`), for this
checkout with its uncommitted changes and for REV in a temporary git worktree. The two take turns: ours first in the
first round, theirs first in the second, and so on. Each case is one line of JSON on standard output, in the format of
the other benchmarks: `ours` and `peer` are the medians of the rounds, `peer_name` is REV's short hash, and `ratio` is
the median of the ratios of the rounds. A higher ratio is better, in every unit. Progress goes to standard error.

Both sides run the benchmark files of this checkout, so that the load is the same; `PYTHONPATH` decides which `redrive`
they and their child processes import. `--instructions` counts instructions instead of CPU time, which differs by a
third from run to run on a shared machine. Where these files do not work with REV's package, because an interface has
changed, REV runs its own benchmark files.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from benchmarks import BENCHMARKS
from benchmarks.case import Case, less_is_better
from benchmarks.contestant import INSTRUCTIONS

ROOT: Final = Path(__file__).resolve().parent.parent
ASKED: Final = 0.95
ROUNDS: Final = 5
_STOP_TIMEOUT_S: Final = 60  # for a benchmark to stop its servers after Ctrl-C
_ONLY_OURS: Final = "--only-ours"
_BY_PROCESS: Final = (
    "consume",
    "kafka",
    "recover",
)  # benchmarks whose contestants are processes that we start
_PROBE: Final = "import benchmarks, redrive; print(benchmarks.__file__); print(redrive.__file__)"


class CompareError(Exception):
    """The commits cannot be compared; the text says why, and what to do."""


class Key(NamedTuple):
    """What is compared: a case can be measured in more than one unit."""

    case: str
    unit: str


Figures = dict[Key, float]  # of one run; where a case has more than one unit, the preferred one comes first


class Round(NamedTuple):
    """What one run of each side has found."""

    ours: Figures
    theirs: Figures


@dataclass(frozen=True)
class Side:
    """A commit under test: where its package is, and where the benchmark files are that measure it."""

    name: str
    tree: Path  # holds src/redrive
    files: Path  # holds benchmarks/ and what they import from tests/

    @property
    def environment(self) -> dict[str, str]:
        """With it, Python and the processes that it starts import this side's package."""
        path = [str(self.tree / "src"), str(self.files), os.environ.get("PYTHONPATH", "")]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}

    def command(self, benchmark: str, *, quick: bool) -> list[str]:
        """The command that measures it. Benchmark files of older commits cannot leave the peers out."""
        options = ["--quick"] if quick else []
        if _ONLY_OURS in (self.files / "benchmarks" / "__main__.py").read_text("utf-8"):
            options.append(_ONLY_OURS)
        return [sys.executable, "-m", "benchmarks", benchmark, *options]


def main(arguments: Sequence[str]) -> int:
    """0: compared. 1: a benchmark could not be compared. 2: wrong arguments, or no worktree."""
    options = parse(arguments)
    try:
        commit = resolve(ROOT, options.rev)
        with worktree(ROOT, commit) as tree:
            link_services(ROOT, tree)
            ours = Side("this checkout", ROOT, ROOT)
            theirs = Side(commit, tree, ROOT)
            for side in (ours, theirs):
                check_imports(side)
            compared = [
                compare(name, ours, theirs, quick=options.quick, rounds=options.rounds)
                for name in options.names
            ]
    except (CompareError, OSError) as error:
        note(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        note("interrupted")
        return 130
    return 0 if all(compared) else 1


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; wrong arguments end the process with exit code 2."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks compare", description="Measure this checkout against another commit."
    )
    parser.add_argument("rev", metavar="REV", help="the other commit: a hash, a branch or a tag")
    parser.add_argument(
        "names", metavar="NAME", nargs="*", default=[], help="which benchmarks (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="smaller numbers, about half an hour for all")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, metavar="N", help="runs of each side (default: %(default)s)"
    )
    parser.add_argument(
        "--instructions",
        action="store_true",
        help="count instructions under valgrind instead of CPU time: slow, but almost independent of other load"
        f" (only {', '.join(_BY_PROCESS)}; implies --quick and one round)",
    )
    options = parser.parse_args(arguments)
    if options.instructions:
        options.names = options.names or list(_BY_PROCESS)
        options.quick, options.rounds = True, 1
        if not shutil.which("callgrind_control"):
            parser.error("--instructions needs valgrind, which is not installed")
        if others := [name for name in options.names if name not in _BY_PROCESS]:
            parser.error(f"--instructions does not measure {', '.join(others)}")
        os.environ[INSTRUCTIONS] = "1"
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"unknown benchmark: {', '.join(unknown)}; known: {', '.join(sorted(BENCHMARKS))}")
    if options.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {options.rounds}")
    options.names = list(dict.fromkeys(options.names)) or sorted(BENCHMARKS.keys() - {"migrate"})
    return options


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- The other commit -----------------------------------------------------------------------------------------


def resolve(repository: Path, revision: str) -> str:
    """The short hash of a commit."""
    try:
        return _git(
            repository, "rev-parse", "--verify", "--short", "--end-of-options", f"{revision}^{{commit}}"
        )
    except CompareError as error:
        raise CompareError(
            f"{revision!r} is not a commit of {repository}: {error}; see 'git log --oneline --all'"
        ) from error


@contextlib.contextmanager
def worktree(repository: Path, commit: str) -> Iterator[Path]:
    """A temporary worktree of a commit; it is removed at the end, also after an error or Ctrl-C."""
    with tempfile.TemporaryDirectory(prefix="redrive-compare-") as folder:
        Path(folder).chmod(0o755)  # servers run as another user, and read their programs through this path
        tree = Path(folder) / commit
        try:
            _git(repository, "worktree", "add", "--detach", "--quiet", str(tree), commit)
            yield tree
        finally:
            if tree.exists():
                _remove(repository, tree)


def _remove(repository: Path, tree: Path) -> None:
    try:
        _git(repository, "worktree", "remove", "--force", str(tree))
    except CompareError as error:
        raise CompareError(f"{error}; remove {tree} and run 'git worktree prune'") from error


def link_services(repository: Path, tree: Path) -> None:
    """Let the other commit's own benchmark files find the installed servers."""
    installed, link = repository / ".services", tree / ".services"
    if installed.exists() and not link.exists():
        link.symlink_to(installed.resolve())


def check_imports(side: Side) -> None:
    """Make sure that the package under test is this side's, and not the one that is installed."""
    done = subprocess.run(
        [sys.executable, "-c", _PROBE],
        cwd=side.files,
        env=side.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CompareError(f"{side.name} cannot be imported: {done.stderr.strip().splitlines()[-1]}")
    found = [Path(line).resolve().parent for line in done.stdout.splitlines()]
    expected = [(side.files / "benchmarks").resolve(), (side.tree / "src" / "redrive").resolve()]
    if found != expected:
        raise CompareError(
            f"{side.name}: Python imports {', '.join(map(str, found))} instead of {', '.join(map(str, expected))};"
            " check PYTHONPATH and the .pth files of the environment"
        )
    note(f"{side.name}: redrive is {found[1]}")


def _git(repository: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(repository), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise CompareError("git is not installed; it is needed to check the other commit out") from error
    if done.returncode:
        raise CompareError(f"git {' '.join(words[:2])} failed: {done.stderr.strip()}")
    return done.stdout.strip()


# --- Rounds ---------------------------------------------------------------------------------------------------


def compare(benchmark: str, ours: Side, theirs: Side, *, quick: bool, rounds: int) -> bool:
    """Run all rounds of a benchmark and print its cases; False if there is nothing to compare."""
    found: list[Round] = []
    for number in range(1, rounds + 1):
        where = f"{benchmark}, round {number} of {rounds}"
        figures = {side: measure(side, benchmark, where, quick=quick) for side in turn(ours, theirs, number)}
        both = Round(figures[ours], figures[theirs])
        if number == 1:
            theirs, both = choose_files(benchmark, theirs, both, where, quick=quick)
            if not both.ours.keys() & both.theirs.keys():
                note(
                    f"{benchmark}: left out, because {ours.name} and {theirs.name} have no figures in common"
                )
                return False
        found.append(both)
    cases = summarize(found, theirs.name)
    for case in cases:
        note(f"{case.name}: ratios of the rounds {' '.join(f'{ratio:.2f}' for ratio in case.ratios)}")
        print(case.line(benchmark), flush=True)
    return bool(cases)


def choose_files(benchmark: str, theirs: Side, both: Round, where: str, *, quick: bool) -> tuple[Side, Round]:
    """The benchmark files that measure the other commit: its own, if ours lack figures that its own ones have."""
    lacking = missing(both)
    if not lacking:
        return theirs, both
    note(f"{benchmark}: {theirs.name} has no figures for {len(lacking)} of our cases; trying its own files")
    own = dataclasses.replace(theirs, files=theirs.tree)
    second = Round(both.ours, measure_own(own, benchmark, where, quick=quick))
    return (own, second) if len(missing(second)) < len(lacking) else (theirs, both)


def turn(ours: Side, theirs: Side, number: int) -> tuple[Side, Side]:
    """Who runs first in a round: ours in the first one, theirs in the second, and so on."""
    return (ours, theirs) if number % 2 else (theirs, ours)


def measure(side: Side, benchmark: str, where: str, *, quick: bool) -> Figures:
    """Run a benchmark for one side; empty if it fails before its first figure."""
    note(f"--- {where}: {side.name}")
    start = time.monotonic()
    process = subprocess.Popen(
        side.command(benchmark, quick=quick),
        cwd=side.files,
        env=side.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches it through `_stop` alone, and once
    )
    try:
        output, _ = process.communicate()
    except BaseException:
        _stop(process)
        raise
    figures = read(output)
    note(f"--- {where}: {side.name}: {len(figures)} figures in {time.monotonic() - start:.0f} s")
    if process.returncode:
        note(f"--- {where}: {side.name}: exit code {process.returncode}, see the error above")
    return figures


def measure_own(side: Side, benchmark: str, where: str, *, quick: bool) -> Figures:
    """Run the other commit's own benchmark files; empty if it has none that can be imported."""
    try:
        check_imports(side)
    except CompareError as error:
        note(f"{benchmark}: {error}")
        return {}
    return measure(side, benchmark, f"{where}, own files", quick=quick)


def _stop(process: subprocess.Popen[str]) -> None:
    """Let a benchmark stop its servers, then end what is left of its process group."""
    process.terminate()  # not SIGINT, which processes that a shell has started in the background ignore
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        note(f"the benchmark did not stop within {_STOP_TIMEOUT_S} s and is killed")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# --- Figures --------------------------------------------------------------------------------------------------


def read(output: str) -> Figures:
    """The figures in the output of a benchmark, with or without peers.

    With peers, a case has a line for each of them, and our figure is the same in all.
    """
    figures: Figures = {}
    for line in output.splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError):  # not a line of figures
            found = json.loads(line)
            figures.setdefault(Key(found["case"], found["unit"]), float(found["ours"]))
    return figures


def missing(both: Round) -> list[str]:
    """Our cases that the other side has not measured in any of our units."""
    measured = {key.case for key in both.ours if key in both.theirs}
    return list(dict.fromkeys(key.case for key in both.ours if key.case not in measured))


@dataclass(frozen=True)
class Comparison(Case):
    """A case of several rounds. Its ratio is the median of theirs: a machine that slows down slows both sides."""

    ratios: tuple[float, ...] = ()

    @property
    def ratio(self) -> float:
        """How many times better than the other commit."""
        return median(self.ratios)


def comparison(key: Key, pairs: Sequence[tuple[float, float]], peer_name: str) -> Comparison:
    """Compare the figures of some rounds, each with our value first."""
    ours, theirs = zip(*pairs, strict=True)
    less = less_is_better(key.unit)
    ratios = tuple(their / our if less else our / their for our, their in pairs)
    return Comparison(key.case, median(ours), median(theirs), peer_name, ASKED, key.unit, less, ratios)


def summarize(rounds: Sequence[Round], peer_name: str) -> list[Comparison]:
    """One comparison for each case, in the first of our units that both sides have; a note where there is none."""
    found: dict[str, Comparison] = {}
    keys = dict.fromkeys(key for each in rounds for key in each.ours)
    for key in keys:
        pairs = [(ours[key], theirs[key]) for ours, theirs in rounds if key in ours and key in theirs]
        if pairs and key.case not in found:
            found[key.case] = comparison(key, pairs, peer_name)
    for case in dict.fromkeys(key.case for key in keys if key.case not in found):
        note(f"{case}: left out, because {peer_name} has no figure for it")
    return list(found.values())
