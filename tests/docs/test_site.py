"""The site builds strictly; every link leads somewhere, and nothing comes from elsewhere."""

from __future__ import annotations

import urllib.parse
from html.parser import HTMLParser
from pathlib import Path

import pytest

from doubles.site import built_site

# What of a page the browser fetches by itself.
FETCHED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src")}

pytestmark = pytest.mark.slow


class Links(HTMLParser):
    """The anchors of a page, what it leads to, and what it fetches."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.led: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name in ("id", "name"):
                self.anchors.add(value)
            if tag == "a" and name == "href":
                self.led.append(value)
            if (tag, name) in FETCHED:
                self.fetched.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory.mktemp("site"))


def test_every_link_leads_to_a_page_and_a_place_in_it(site: Path) -> None:
    pages = {path: Links(path) for path in sorted(site.rglob("*.html"))}
    assert len(pages) > 100
    broken: list[str] = []
    for path, links in pages.items():
        # The page for addresses that are not there has absolute links.
        if path.name == "404.html":
            continue
        for link in links.led:
            target, _, anchor = urllib.parse.unquote(link).partition("#")
            if ":" in target:
                continue
            found = (path.parent / target).resolve() if target else path
            found = found / "index.html" if found.is_dir() else found
            there = found.is_file() and (
                not anchor or found.suffix != ".html" or anchor in pages[found].anchors
            )
            if not there:
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []


def test_nothing_comes_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert [link for link in Links(path).fetched if "//" in link] == [], path
