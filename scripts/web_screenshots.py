"""Take the screenshots of the dashboard for the documentation, of a seeded shop.

Usage: python -m scripts.web_screenshots [--out docs/run/web] [--all]

With --all, every page is taken in each look, for people to inspect: both themes and languages, on a desk and on phones,
with all states and with none. Needs /usr/bin/chromium.
"""

import argparse
import base64
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, Page
from scripts.small_png import Pixels, small_png
from tests.web.browser.chromium import Look, chromium, tab, why_not_here
from tests.web.browser.conftest import Served, serve
from tests.web.browser.pages import Example, examples, plain_pages
from tests.web.browser.test_every_page import ALL_LOOKS
from tests.web.seeds import empty, seeded

ROOT = Path(__file__).resolve().parent.parent
BYTES_MAX = 150_000
DESK, PHONE = Look(width=1_280, height=800), Look(theme="dark", width=390, height=844)

# The pictures of the documentation: page, name of the example, and look.
PICTURES: Mapping[str, tuple[str, str, Look]] = {
    "overview": ("/", "plain", DESK),
    "overview-phone": ("/", "plain", PHONE),
    "queue": ("/queue", "flooded", Look(width=1_280, height=1_500)),
    "dead-letters": ("/dead", "plain", DESK),
    "dead-letter": ("/dead/message", "crashed", DESK),
    "objects": ("/objects", "plain", DESK),
    "batch": ("/batch", "many", DESK),
    "workers": ("/workers", "plain", Look(theme="dark", width=1_280, height=800)),
    "overview-japanese": ("/", "plain", Look(language="ja", width=1_280, height=800)),
}
_PIXELS = """async (encoded) => {
  const image = await createImageBitmap(await (await fetch("data:image/png;base64," + encoded)).blob());
  const canvas = new OffscreenCanvas(image.width, image.height);
  const drawing = canvas.getContext("2d");
  drawing.drawImage(image, 0, 0);
  const bytes = drawing.getImageData(0, 0, image.width, image.height).data;
  let text = "";
  for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
  return [image.width, image.height, btoa(text)];
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Take the screenshots of the dashboard.")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "run" / "web")
    parser.add_argument("--all", action="store_true", help="take every page in each look instead, as full pages")
    arguments = parser.parse_args()
    if (missing := why_not_here()) is not None:
        sys.exit(missing)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with chromium() as browser, _shops() as (full, bare):
        if arguments.all:
            _take_all(browser, full, bare, arguments.out)
        else:
            _take_pictures(browser, full, arguments.out)


@contextmanager
def _shops() -> Iterator[tuple[Served, Served]]:
    """Serve the seeded shop and an empty one."""
    with (
        tempfile.TemporaryDirectory(prefix="shop-") as one,
        tempfile.TemporaryDirectory(prefix="shop-") as other,
        seeded(Path(one)) as full,
        empty(Path(other)) as bare,
        serve(full) as served_full,
        serve(bare) as served_bare,
    ):
        yield served_full, served_bare


def _take_pictures(browser: Browser, full: Served, out: Path) -> None:
    known = {(example.path, example.name): example for example in examples()}
    too_large = list[str]()
    for name, (path, which, look) in PICTURES.items():
        content = _picture(browser, full, known[path, which], look, whole=False)
        (out / f"{name}.png").write_bytes(content)
        print(f"{name}.png: {len(content):,} bytes")
        too_large += [name] if len(content) > BYTES_MAX else []
    if too_large:
        sys.exit(f"larger than {BYTES_MAX:,} bytes: {', '.join(too_large)}")


def _take_all(browser: Browser, full: Served, bare: Served, out: Path) -> None:
    for served, shown in ((full, [*examples()]), (bare, [*plain_pages()])):
        for example in shown:
            for look in ALL_LOOKS:
                name = f"{example}-{look}".replace("/", "_").replace(":", "-").replace(" ", "-")
                (out / f"{name}.png").write_bytes(_picture(browser, served, example, look, whole=True))


def _picture(browser: Browser, served: Served, example: Example, look: Look, *, whole: bool) -> bytes:
    with tab(browser, served.url, look) as opened:
        page = opened.open(example.address(served.seed))
        page.wait_for_function("document.documentElement.classList.contains('scripted')")
        page.get_by_text("Counting:").wait_for(state="hidden")  # the dead letters
        shot = page.screenshot(full_page=whole)
        for problem in opened.take_problems():
            print(f"{example}, {look}: {problem}", file=sys.stderr)
        page.goto("about:blank")
        return small_png(_pixels(page, shot))


def _pixels(page: Page, png: bytes) -> Pixels:
    """Decode a PNG file, in the browser."""
    width, height, encoded = page.evaluate(_PIXELS, base64.b64encode(png).decode())
    pixels = np.frombuffer(base64.b64decode(encoded), dtype=np.uint8).reshape(height, width, 4)
    return np.ascontiguousarray(pixels[:, :, :3])


if __name__ == "__main__":
    main()
