"""Configuration of the documentation site (`make docs`)."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import cs_toolkit
from cs_toolkit.errors import PACKAGES

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

project = "cs-toolkit"
author = "the cs-toolkit contributors"
version = release = cs_toolkit.__version__
sys.path.insert(0, str(DOCS))  # command_help
extensions = ["command_help", "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["**/*.jsonl"]
nitpicky = True

myst_heading_anchors = 4  # the fragments of links, as forges make them
highlight_language = "bash"  # indented blocks are commands

default_role = "literal"  # `name` in a docstring
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False  # those of the frameworks
autodoc_default_options = {
    "members": True,
    "imported-members": True,
    "exclude-members": "Range",  # an attribute of Schedule, too
}
napoleon_use_ivar = True
napoleon_use_rtype = False
# Types of private modules, of the frameworks and of NumPy have no pages.
nitpick_ignore_regex = [("py:.*", ".*")]

html_theme = "furo"
html_title = f"cs-toolkit {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False

# Pages of the site whose text is a file outside docs; readers of the checkout find only a link there.
FILES_OF_PAGES = {
    "start": ROOT / "README.md",
    "contributors/changelog": ROOT / "CHANGELOG.md",
    "contributors/contributing": ROOT / "CONTRIBUTING.md",
    "tutorials/examples": ROOT / "models" / "README.md",
}
_LINK = re.compile(r"\[([^][]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def setup(app: Sphinx) -> None:
    """Register the handlers of this file."""
    app.connect("source-read", read_page)
    app.connect("autodoc-skip-member", skip_member)


def skip_member(_app: Sphinx, kind: str, _name: str, member: Any, _skip: bool, _options: Any) -> bool | None:
    """Leave out what a module imports from packages that are not ours, and fields without a description."""
    if (getattr(member, "__doc__", None) or "").startswith("Alias for field number"):
        return True
    home = getattr(member, "__module__", None)
    if kind == "module" and isinstance(home, str) and home.partition(".")[0] not in PACKAGES:
        return True
    return None  # as autodoc decides


def read_page(_app: Sphinx, page: str, source: list[str]) -> None:
    """Replace the text of a page by that of its file, and make the links lead to pages of the site."""
    file = FILES_OF_PAGES.get(page)
    if file is not None:
        source[0] = file.read_text(encoding="utf-8")
    source[0] = link_pages(source[0], page, (file or DOCS / page).parent)


def link_pages(text: str, page: str, folder: Path) -> str:
    """Return the text of a page with links from its folder to pages; those to sources become their text."""
    pages = {path: DOCS / f"{name}.md" for name, path in FILES_OF_PAGES.items()}

    def link(found: re.Match[str]) -> str:
        label, path, fragment = found.groups("")
        if "://" in path:
            return found[0]
        target = (folder / path).resolve()
        target = pages.get(target, target)
        if not target.is_relative_to(DOCS):
            return label
        return f"[{label}]({os.path.relpath(target, (DOCS / page).parent)}{fragment})"

    return _LINK.sub(link, text)
