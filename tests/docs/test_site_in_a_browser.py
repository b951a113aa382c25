"""The site in Chromium, at the width of a desk and of a phone, light and dark."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from doubles.site import built_site

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SCREENS = {
    "desk": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
}
SIZES = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="needs Chromium (Debian: apt-get install chromium)"
    ),
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs `pip install playwright`")
    options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with api.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=options)
        yield found
        found.close()


@pytest.mark.parametrize("screen", SCREENS)
def test_every_page_opens_without_errors_and_is_not_too_wide(
    screen: str, site: Path, address: str, browser: Any
) -> None:
    context = browser.new_context(**SCREENS[screen])
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda m: m.type in ("error", "warning") and wrong.append(m.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda r: r.url.startswith((address, "data:")) or wrong.append(r.url))
    page.on("response", lambda r: r.status < 400 or wrong.append(f"{r.status} {r.url}"))
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site).as_posix()
        page.goto(address + name)
        width, there = page.evaluate(SIZES)
        assert width <= there + 1, name
        assert wrong == [], name
    context.close()


@pytest.mark.parametrize("screen", SCREENS)
def test_the_search_finds_pages(screen: str, address: str, browser: Any) -> None:
    context = browser.new_context(**SCREENS[screen])
    page = context.new_page()
    page.goto(f"{address}index.html?q=zero-bubble")
    page.wait_for_selector(".md-search-result__item a")
    links = page.eval_on_selector_all(
        ".md-search-result__item a", "found => found.map(a => a.href)"
    )
    assert any("concepts.html" in link for link in links)
    context.close()
