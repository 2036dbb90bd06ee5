"""`scripts/check-language` finds the patterns, ignores code and names the lines."""

import importlib.util
import re
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "check-language"


@pytest.fixture(scope="module")
def language() -> ModuleType:
    loader = SourceFileLoader("check_language", str(SCRIPT))
    spec = importlib.util.spec_from_loader("check_language", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "check_language", module)  # dataclasses look it up
        loader.exec_module(module)
    return module


def lines_with(language: ModuleType, name: str, page: str) -> list[int]:
    texts = list(language.from_markdown("page.md", page))
    return [hit.line for hit in language.hits(language.PATTERNS[name], texts)]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("tell", "The broker tells its clients."),
        ("somebody", "Whoever reads this, nobody answers."),
        ("what is", "What is old is removed."),
        ("what is", "- who has the key can read it."),
        ("mend", "The file lies beside the store."),
        ("own", "It has a process of its own."),
    ],
)
def test_pattern_is_found_on_its_line(language: ModuleType, name: str, sentence: str) -> None:
    assert lines_with(language, name, f"# Title\n\nFirst paragraph.\n\n{sentence}\n")[0] == 5


@pytest.mark.parametrize(
    "page", ["What is redrive? A library.", "It shows what is stored.", "Find out what\nis stored."]
)
def test_questions_and_objects_are_not_found(language: ModuleType, page: str) -> None:
    assert lines_with(language, "what is", page) == []


def test_code_in_markdown_is_ignored(language: ModuleType) -> None:
    page = "Run `redrive tell`.\n\n```console\n$ tell\n```\n\nIt tells.\n"
    assert lines_with(language, "tell", page) == [7]


def test_messages_are_strings_with_a_space_that_are_no_docstrings(language: ModuleType) -> None:
    source = '"""A docstring."""\n\nNAME = "name"\n\n\ndef fail(x):\n    raise ValueError(f"nobody has {x} here")\n'
    docstrings, messages = language.from_python("module.py", source)
    assert [(text.line, text.text) for text in docstrings] == [(1, "A docstring.")]
    assert [(text.line, text.text) for text in messages] == [(7, "nobody has "), (7, " here")]


def test_test_names_are_read_as_words(language: ModuleType) -> None:
    [text] = language.from_tests("test_a.py", "\nasync def test_store_is_told() -> None: ...\n")
    assert (text.line, text.text) == (2, "store is told")


@pytest.mark.parametrize("reference", ["AMQP.md", "seed 004", "(A6)", "(E7, H6)"])
def test_reference_to_a_planning_document_is_dead(language: ModuleType, reference: str) -> None:
    [found] = language.dead_references({"docs/page.md": f"One.\nAs in {reference}.\n"}, [])
    assert re.match(r"docs/page\.md:2: ", found)


@pytest.mark.parametrize(
    "reference", ["README.md", "(S13)", "https://example.org/CONFIGURATION.md", "(AMQP)"]
)
def test_reference_that_readers_can_open_is_not_dead(language: ModuleType, reference: str) -> None:
    assert language.dead_references({"README.md": f"See {reference}."}, []) == []
