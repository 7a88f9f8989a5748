"""Tables of docs/ that are made from the code. Each stands between two marks, of which the first names its script."""

from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
END = "\n[//]: # (end)\n"


def rewritten(page: str, *, script: str, table: str) -> str:
    """The text of a page with this table in the place of the one that the script made before."""
    begin = f"[//]: # (made by scripts/{script}.py)\n\n"
    before, begins, rest = page.partition(begin)
    _, ends, after = rest.partition(END)
    if not (begins and ends):
        raise SystemExit(f"The marks that the table of scripts/{script}.py stands between are lost; put them back.")
    return f"{before}{begin}{table}{END}{after}"
