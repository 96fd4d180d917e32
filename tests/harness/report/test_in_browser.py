"""The report in a browser, on wide and narrow screens."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import ROOT
from vocabench.harness.report import machines, page
from vocabench.harness.run.store import read

RESULTS = ROOT / "results"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: Debian's package is 'chromium'")


def in_browser(html, tmp_path, width, probe):
    """Return what a script observes, after loading the page without it: the console is empty and no network is used."""
    # The content security policy of the page would block the probe.
    policy = re.search(r'<meta http-equiv="Content-Security-Policy"[^>]*>', html)
    assert policy is not None
    for name, content in (
        ("page.html", html),
        ("probe.html", html.replace(policy.group(0), "").replace("</body>", f"<script>{probe}</script></body>")),
    ):
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        # With a proxy that does not exist, any network request fails and is logged on the console.
        command = [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
            "--disable-background-networking", "--disable-component-update", "--disable-quic", "--dump-dom",
            "--enable-logging=stderr", "--proxy-server=127.0.0.1:9", f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width},900", f"file://{path}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert [line for line in done.stderr.splitlines() if ":CONSOLE" in line] == []
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title is not None
    return json.loads(title.group(1).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


@pytest.mark.parametrize("width", [1400, 400])
def test_the_report_of_a_run(tmp_path, width):
    """The first answer is short, charts and tables unfold, sort and filter, and nothing is too wide or overlaps."""
    html = page.build(read(RESULTS / "archive" / "quick.jsonl"), title="A quick run", files="quick.jsonl")
    probe = (Path(__file__).parent / "probe.js").read_text(encoding="utf-8")
    found = in_browser(html, tmp_path, width, probe)
    if width == 1400:
        assert found["answer"] < 2 * 900
        assert found["height"] < 3 * 900
    assert not found["wide"]
    assert not found["openWide"]
    assert found["narrowest"] > 40
    assert found["charts"] > 3
    assert found["foldedBefore"] == 0 < found["foldedAfter"]
    assert found["overlapping"] == []
    assert found["ticks"] > 2
    assert found["outside"] == 0
    assert found["speeds"] == sorted(found["speeds"])
    assert re.search(r"[\d.]+ to [\d.]+", found["tip"])  # the interval
    numbers = [float(value) for value in found["rising"]]
    assert numbers == sorted(numbers)
    assert found["falling"] == found["rising"][::-1]
    assert found["sort"] == "descending"
    assert sorted(found["fitting"]) == sorted(t for t in found["all"] if {"sohsm", "jax"} <= {*t.split()})
    assert 0 < len(found["fitting"]) < len(found["all"])
    assert found["methods"] == ["huffman"]
    assert sorted(found["frameworks"]) == ["tensorflow", "torch"]
    assert sorted(found["inTable"]) == ["huffman tensorflow", "huffman torch"]
    assert found["inCharts"] == ["huffman"]
    assert found["shownCharts"] == 2


_MACHINES = """
const parts = () => [...document.querySelectorAll("[data-machine]")].filter((part) => !part.hidden);
const shown = () => [...new Set(parts().map((part) => part.dataset.machine))];
const before = shown();
const second = document.querySelector("[name=machine][value='1']");
second.checked = true;
second.dispatchEvent(new Event("input", { bubbles: true }));
const page = document.documentElement;
const wide = page.scrollWidth > page.clientWidth;
document.title = JSON.stringify({ before, after: shown(), wide, height: page.scrollHeight });
"""


@pytest.mark.lengthy
@pytest.mark.parametrize("width", [1400, 400])
def test_the_report_of_all_published_rows(tmp_path, width):
    """One machine is shown at a time, and a page of all rows is hardly longer than one of a run."""
    rows = machines.latest_by_machine(row for path in sorted(RESULTS.glob("*.jsonl")) for row in read(path))
    found = in_browser(page.build(rows, title="All", files="f"), tmp_path, width, _MACHINES)
    assert found["before"] == ["0"]
    assert found["after"] == ["1"]
    assert not found["wide"]
    assert width == 400 or found["height"] < 4 * 900
