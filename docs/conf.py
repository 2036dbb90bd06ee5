"""Sphinx configuration of the documentation site: `make docs` builds it in build/docs, without network access.

The pages are Markdown files that are also read on GitHub, so they contain no Sphinx directives. What only the site
needs is added here: the navigation, links to files outside docs/, and valid reStructuredText for docstrings.
"""

import posixpath
import re
from typing import Final

from sphinx.application import Sphinx

from redrive._version import __version__

_REPOSITORY: Final = "https://github.com/redrive-project/redrive"
_NAVIGATION: Final = {
    "Tutorials": "tutorial/*",
    "How-to guides": "how-to/*",
    "Explanation": "explanation/*",
    "Reference": "reference/*",
    "Decisions": "decisions/*",
}
_LINK: Final = re.compile(r"\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")
_CODE: Final = re.compile(r"(`[^`]+`)")

project = "redrive"
version = release = __version__
copyright = "the redrive contributors"  # noqa: A001  Sphinx reads this name

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
# Some examples are shortened with "…", which is not valid in their language. Settings are headings of level 3.
suppress_warnings = ["misc.highlighting_failure", "myst.header"]

autodoc_default_options = {"members": True, "exclude-members": "__init__, __new__"}
autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"

html_theme = "furo"
html_title = f"redrive {__version__}"
html_theme_options = {
    "source_repository": _REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
}
html_copy_source = False


def _adapt_page(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Add the navigation to the index, and link files outside docs/ to the repository."""
    directory = posixpath.join("docs", posixpath.dirname(docname))

    def absolute(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(directory, link[1]))
        if path.startswith("docs/"):
            return link[0]
        return f"]({_REPOSITORY}/blob/main/{path}{link[2] or ''})"

    source[0] = _LINK.sub(absolute, source[0])
    if docname == "index":
        for caption, pages in _NAVIGATION.items():
            source[0] += f"\n```{{toctree}}\n:caption: {caption}\n:hidden:\n:glob:\n\n{pages}\n```\n"


def _adapt_docstring(
    _app: Sphinx, _kind: str, _name: str, _object: object, _options: object, lines: list[str]
) -> None:
    """Make reStructuredText of a docstring, which is plain text with `code` and indented examples."""
    adapted: list[str] = []
    is_example = False
    for line in lines:
        if line.startswith("    "):
            if not is_example:
                adapted += ["::", ""]
                is_example = True
            adapted.append(line)
            continue
        if line:
            is_example = False
        adapted.append(
            "".join(f"`{part}`" if _CODE.fullmatch(part) else _escape(part) for part in _CODE.split(line))
        )
    lines[:] = adapted


def _escape(text: str) -> str:
    return re.sub(r"([\\*|_])", r"\\\1", text)


def setup(app: Sphinx) -> None:
    """Register the adaptations."""
    app.connect("source-read", _adapt_page)
    app.connect("autodoc-process-docstring", _adapt_docstring)
