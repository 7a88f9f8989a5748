"""Tables of docs/ that are generated from the code. Each is between two marks, the first of which names its script."""

from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
END = "\n[//]: # (end)\n"


def rewritten(page: str, *, script: str, table: str) -> str:
    """Return a page's text with the script's earlier table replaced by this one."""
    begin = f"[//]: # (made by scripts/{script}.py)\n\n"
    before, begins, rest = page.partition(begin)
    _, ends, after = rest.partition(END)
    if not (begins and ends):
        raise SystemExit(f"The marks that the table of scripts/{script}.py stands between are lost; put them back.")
    return f"{before}{begin}{table}{END}{after}"
