"""The site builds, and mkdocs finds every link, anchor and page of the navigation."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 540


def test_the_site_builds_and_loads_nothing_from_other_hosts() -> None:
    built = subprocess.run(
        ["make", "site", f"PYTHON={sys.executable}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert built.returncode == 0, built.stdout
    pages = list((ROOT / "build/site").rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=\"(https?://[^\"]+)", page.read_text())
        assert loaded == [], page
