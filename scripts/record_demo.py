"""Run the demo and write its terminal as an SVG into docs/learn/demo.svg.

Usage: python -m scripts.record_demo [--from FILE]

With --from, use the output of an earlier run. Progress lines and the commands to try next are left out, and the path of
the demo's folder is replaced. The SVG loads no fonts.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.sax.saxutils import escape

from scripts.made_tables import DOCS

PICTURE = DOCS / "learn" / "demo.svg"
PROMPT = "$ make demo"
COLUMNS_MAX = 112
FONTS = "ui-monospace, Menlo, Consolas, monospace"
CHARACTER_WIDTH, LINE_HEIGHT, MARGIN = 7.25, 17, 16
PROGRESS = re.compile(r"^\d[\d,]* of \d[\d,]* objects, .*this batch:")


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the demo's terminal.")
    parser.add_argument("--from", dest="source", type=Path, help="the output of an earlier run")
    source: Path | None = parser.parse_args().source
    output = run() if source is None else source.read_text(encoding="utf-8")
    PICTURE.write_text(picture([PROMPT, *shown(output)]), encoding="utf-8")


def run() -> str:
    """Return the output of the demo."""
    with TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).parent / "penstock"), "demo", "--dir", f"{folder}/demo"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
        return done.stdout.replace(f"{folder}/demo", "build/demo")


def shown(output: str) -> Sequence[str]:
    """Return the lines of the picture: without progress lines, long lines wrapped."""
    lines = []
    proof, _, _ = output.partition("\nTry next:")
    for line in proof.splitlines():
        if PROGRESS.match(line):
            continue
        rest = line.rstrip()
        while len(rest) > COLUMNS_MAX:
            at = rest.rfind(" ", 0, COLUMNS_MAX)
            at = at if at > 0 else COLUMNS_MAX
            lines.append(rest[:at])
            rest = f"    {rest[at:].lstrip()}"
        lines.append(rest)
    return lines


def picture(lines: Sequence[str]) -> str:
    width = round(2 * MARGIN + CHARACTER_WIDTH * max(map(len, lines)))
    height = 2 * MARGIN + LINE_HEIGHT * len(lines)
    texts = "\n".join(
        f'<text x="{MARGIN}" y="{MARGIN + LINE_HEIGHT * (row + 1) - 4}"{colour(line)}>{escape(line)}</text>'
        for row, line in enumerate(lines)
        if line
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="#1c2128"/>\n'
        f'<g font-family="{FONTS}" font-size="12" fill="#cdd9e5" xml:space="preserve">\n'
        f"{texts}\n</g>\n</svg>\n"
    )


def colour(line: str) -> str:
    if line == PROMPT:
        return ' fill="#6cb6ff" font-weight="bold"'
    return ' fill="#f47067"' if "SIGKILL" in line or "killed" in line else ""


if __name__ == "__main__":
    main()
