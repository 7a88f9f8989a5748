"""Write the tables and charts of docs/run/growth.md from the figures in docs/run/growth/figures.json.

    python -m benchmarks.growth.page [FILE]

With FILE, its curves replace those of the same parts first. The text around the tables is kept.
"""

import argparse
import math
import re
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.growth.curves import FLAT, Curve, load, store

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/run/growth.md"
FOLDER = ROOT / "docs/run/growth"
FIGURES = FOLDER / "figures.json"

_BLOCK = re.compile(r"(<!-- growth: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_WIDTH, _ROW, _TOP = 640, 22, 34
_LEFT, _RIGHT = 260, 560  # of the bars
_TIMES_MAX = 1_000.0  # the right end of the scale, which is logarithmic
_STYLE = (
    "text{font:12px sans-serif;fill:#333}.flat{fill:#2a7d4f}.grows{fill:#b3541e}.axis{stroke:#888;stroke-width:1}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.flat{fill:#5cc08a}.grows{fill:#f0965c}}"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    arguments = parser.parse_args()
    curves = list(load(FIGURES))
    if arguments.file is not None:
        newer = load(arguments.file)
        parts = {curve.part for curve in newer}
        curves = [*(curve for curve in curves if curve.part not in parts), *newer]
        store(FIGURES, curves)
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), curves), encoding="utf-8")
    for part in dict.fromkeys(curve.part for curve in curves):
        (FOLDER / f"{part}.svg").write_text(chart(part, curves), encoding="utf-8")


def filled(page: str, curves: Sequence[Curve]) -> str:
    """Return the page with the table of each part in its block."""
    return _BLOCK.sub(lambda block: f"{block[1]}{table(block[2], curves)}{block[3]}", page)


def table(part: str, curves: Sequence[Curve]) -> str:
    """Return the lines of a part's table: the cost per unit at each size, and the growth."""
    own = [curve for curve in curves if curve.part == part]
    sizes = sorted({point.size for curve in own for point in curve.points})
    lines = [
        f"| {_unit(part)} | each | {' | '.join(f'{size:,}' for size in sizes)} | growth |",
        f"|---|---|{'---:|' * (len(sizes) + 1)}",
    ]
    for curve in own:
        by_size = {point.size: _number(point.cost) for point in curve.points}
        costs = " | ".join(by_size.get(size, "") for size in sizes)
        lines.append(f"| {curve.operation} | {curve.unit} | {costs} | {_times(curve)} |")
    return "".join(f"{line}\n" for line in lines)


def _unit(part: str) -> str:
    return "memory" if part == "memory" else "CPU us"


def chart(part: str, curves: Sequence[Curve]) -> str:
    """Return an SVG with a bar for the growth of each curve, and a line at the limit of a flat one."""
    own = [curve for curve in curves if curve.part == part]
    height = _TOP + _ROW * len(own) + 24
    limit = _at(FLAT)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{part}">',
        f"<style>{_STYLE}</style>",
        f'<text x="10" y="20">{part}: cost per unit at the last size, as a multiple of that at the second</text>',
    ]
    for row, curve in enumerate(own):
        y = _TOP + _ROW * row
        kind = "flat" if curve.is_flat else "grows"
        lines += [
            f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(curve.operation)}</text>',
            f'<rect class="{kind}" x="{_LEFT}" y="{y + 3}" width="{_at(curve.growth) - _LEFT:.1f}" height="14"/>',
            f'<text x="{_at(curve.growth) + 6:.1f}" y="{y + 14}">{_times(curve)}</text>',
        ]
    bottom = _TOP + _ROW * len(own)
    lines += [
        f'<path class="axis" stroke-dasharray="4 3" d="M{limit:.1f} {_TOP}V{bottom}"/>',
        f'<text x="{limit:.1f}" y="{bottom + 16}" text-anchor="middle">flat up to {FLAT:g} x</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _at(times: float) -> float:
    """Return the x of a growth: from a tenth to a thousand times, logarithmic."""
    share = (math.log10(min(max(times, 0.1), _TIMES_MAX)) + 1) / (math.log10(_TIMES_MAX) + 1)
    return _LEFT + share * (_RIGHT - _LEFT)


def _times(curve: Curve) -> str:
    return f"{curve.growth:,.0f} x" if curve.growth >= 10 else f"{curve.growth:.2f} x"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


if __name__ == "__main__":
    main()
