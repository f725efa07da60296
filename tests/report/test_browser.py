"""The page in a real browser: no console message, pictures drawn, nothing wider than a phone."""

import html
import json
import re
import shutil
import subprocess

import pytest
from language_records import story
from records import write_runs

from uncork.report import write_report


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: apt-get install chromium)")
FIGURES = 15 + 4  # of the synthetic experiment and of language models
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=8000",
]  # fmt: skip
# Reads the page inside a frame of a phone's width, and writes what it found into the frame's page.
PROBE = """<!DOCTYPE html><link rel="icon" href="data:,"><body>
<iframe id="frame" style="width:WIDTHpx;height:800px;border:0" srcdoc="PAGE"></iframe>
<script>
document.getElementById("frame").addEventListener("load", event => {
  const page = event.target.contentDocument, images = [...page.images];
  Promise.allSettled(images.map(image => image.decode())).then(() => {
    document.title = JSON.stringify([page.documentElement.scrollWidth, images.length,
      images.filter(i => i.naturalWidth > 0 && i.alt).length,
      event.target.contentWindow.performance.getEntriesByType("resource")
        .filter(entry => !entry.name.startsWith("data:")).length]);
  });
});
</script>"""


def browse(page, profile):
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--dump-dom", page.as_uri()]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout, [line for line in answer.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    lines = "".join(json.dumps(record) + "\n" for record in story())
    (folder / "lm.jsonl").write_text(lines, encoding="utf-8")
    return write_report([write_runs(folder / "runs"), folder / "lm.jsonl"], folder / "report.html")[0]


def test_renders_without_a_console_message(report, tmp_path):
    dom, messages = browse(report, tmp_path)
    assert messages == []
    assert "The claim and what became of it" in dom and dom.count("<figure>") == FIGURES


def probe(text, width, folder):
    """Width of the page, images, those drawn with a text alternative, resources fetched; console messages."""
    page = folder / "probe.html"
    page.write_text(PROBE.replace("WIDTH", str(width)).replace("PAGE", html.escape(text)), encoding="utf-8")
    dom, messages = browse(page, folder / "profile")
    found = re.search(r"<title>\[(.*?)\]</title>", dom)
    assert found, (messages, dom[:300])
    return [int(number) for number in found.group(1).split(",")], messages


@pytest.mark.parametrize("width", [360, 1280])
def test_fits_the_screen_and_draws_every_figure(report, tmp_path, width):
    (page_width, images, drawn, fetched), messages = probe(
        report.read_text(encoding="utf-8"), width, tmp_path
    )
    assert messages == [] and fetched == 0
    assert page_width <= width
    assert images == drawn == FIGURES


def test_the_checks_can_fail(report, tmp_path):
    extra = (
        '<img src="https://example.org/x.png"><script>console.error("broken")</script>'
        '<div style="width:2000px">wide</div>'
    )
    text = report.read_text(encoding="utf-8").replace("<h1>", extra + "<h1>")
    (page_width, images, drawn, fetched), messages = probe(text, 360, tmp_path)
    assert len(messages) >= 1 and fetched == 1
    assert page_width > 360 and images == drawn + 1
