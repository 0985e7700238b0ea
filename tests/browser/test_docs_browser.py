"""The documentation site in Chromium, opened from files: it fits a phone, and its search works offline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.devtools import CHROMIUM, BrowserPage

pytestmark = [
    pytest.mark.docs,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no Chromium; on Debian: apt-get update && apt-get install -y chromium"
    ),
]
SITE = Path(__file__).parents[2] / "build" / "docs"
PHONE_WIDTH = 390
# The theme makes a page that is too wide scroll in the box of its text.
SIDEWAYS = """[document.documentElement, document.querySelector('.content')].reduce(
    (hidden, box) => hidden + box.scrollWidth - box.clientWidth, 0)"""


@pytest.fixture(scope="module")
def phone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserPage]:
    """A browser of the width of a phone that shows the first page."""
    profile = tmp_path_factory.mktemp("phone") / "profile"
    with BrowserPage(profile, (SITE / "index.html").as_uri(), PHONE_WIDTH) as page:
        yield page


def test_no_page_scrolls_sideways_on_a_phone(phone: BrowserPage) -> None:
    """Wide tables and code scroll in their own boxes."""
    wide = {}
    pages = sorted(SITE.rglob("*.html"))
    assert len(pages) > 30
    for file in pages:
        phone.open(file.as_uri())
        if hidden := phone.evaluate(SIDEWAYS):
            wide[str(file.relative_to(SITE))] = hidden
    assert not wide
    phone.evaluate("document.querySelector('article').style.width = '500px'")
    assert phone.evaluate(SIDEWAYS) > 100  # the check sees what is wide


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("prometheus", "administrators/operating.html"),
        ("memoryx secret", "reference/files.html"),
        ("zeppelin", None),
    ],
)
def test_the_search_finds_a_word_offline(phone: BrowserPage, words: str, page: str | None) -> None:
    phone.open(f"{(SITE / 'search.html').as_uri()}?q={words.replace(' ', '+')}")
    phone.wait_for("Search.title?.innerText", "Search Results".__eq__)
    found = "[...document.querySelectorAll('ul.search a')].map(link => link.getAttribute('href'))"
    if page is None:
        assert phone.evaluate(found) == []
    else:
        phone.wait_for(found, lambda links: any(link.startswith(page) for link in links))
