"""Pages in a real browser: no error of a script, nothing on the console, no request."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from doubles.pipelines import pipeline
from meshwise.baselines.rival_method import RivalMethod
from meshwise.report.html.page import plan_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium (Debian: apt-get install chromium)"
)

# What Chromium's log says of a request of the browser itself.
OWN = "not an origin"
# Runs after the page's own script: what a pointer over the first task shows, and any error.
PROBE = """
<script>
var task = document.querySelector("[data-t]");
var box = task.getBoundingClientRect();
task.dispatchEvent(new PointerEvent("pointermove",
  {bubbles: true, clientX: box.x + 1, clientY: box.y + 1}));
document.documentElement.dataset.tip = document.getElementById("tip").textContent;
document.documentElement.dataset.expected = task.getAttribute("data-t");
document.documentElement.dataset.width = window.innerWidth;
document.documentElement.dataset.wide =
  document.documentElement.scrollWidth > document.documentElement.clientWidth;
</script>
</body>
"""
ERRORS = '<head>\n<script>window.onerror = function (m) { console.error("E " + m); };</script>'


def opened(page: str, tmp_path: Path, width: int = 1440) -> tuple[str, str, list[str]]:
    """The document after its scripts ran, the console, and what was asked of the network."""
    assert CHROMIUM is not None
    file, log = tmp_path / "page.html", tmp_path / "net.json"
    file.write_text(page.replace("</body>", PROBE).replace("<head>", ERRORS, 1))
    run = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--disable-background-networking", "--disable-component-update", "--no-first-run",
         "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
         f"--user-data-dir={tmp_path / 'profile'}", f"--log-net-log={log}",
         f"--window-size={width},900",
         "--enable-logging=stderr", "--dump-dom", file.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    console = [row for row in run.stderr.splitlines() if "CONSOLE" in row]
    return run.stdout, "\n".join(console), requests(log)


def requests(log: Path) -> list[str]:
    """Addresses that the page asked for; what the browser asks by itself has no origin."""
    found: set[str] = set()
    for event in json.loads(log.read_text())["events"]:
        params = event.get("params", {})
        if params.get("initiator", OWN) != OWN and not params["url"].startswith(("file:", "data:")):
            found.add(params["url"])
    return sorted(found)


# Chromium opens no window that is narrower.
@pytest.mark.parametrize("width", [1440, 500])
def test_the_page_opens_without_errors_or_network(tmp_path: Path, width: int) -> None:
    plan = pipeline(16, 256, "8x p3.16xlarge", model="a <b>model</b> & more",
                    spelling=(("0", "state"), ("0/params", ".params")))  # fmt: skip
    rivals = (RivalMethod(name="data parallel", peak_bytes=2**40),
              RivalMethod(name="a" * 80, how="b" * 80, step_time_s=1.0, peak_bytes=1))  # fmt: skip
    document, console, asked = opened(plan_page(plan, rivals=rivals), tmp_path, width)
    assert console == ""
    assert asked == []
    (tip,) = re.findall(r'data-tip="([^"]*)"', document)
    assert tip.startswith("computes: ")
    assert f'data-expected="{tip}"' in document
    assert f'data-width="{width}"' in document
    # Only tables and pictures scroll sideways, never the page.
    assert 'data-wide="false"' in document


def test_the_probe_sees_errors_and_requests(tmp_path: Path) -> None:
    page = plan_page(pipeline(2, 4))
    page = re.sub(r"<meta http-equiv[^>]*>", "", page)
    bad = '<img src="http://127.0.0.1:9/x.png"><script>missing();</script>'
    _, console, asked = opened(page.replace("<main>", bad + "<main>"), tmp_path)
    assert "missing is not defined" in console
    assert asked == ["http://127.0.0.1:9/x.png"]
