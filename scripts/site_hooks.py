"""MkDocs hooks: pages link to files of the repository outside docs/, so the site contains those files too."""

import importlib
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Files and folders that pages may link to: a page at docs/run/x.md links to ../../deploy/y.
SHIPPED = ("deploy", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE")
OUTSIDE = re.compile(rf"\]\(((?:\.\./)*)\.\./({'|'.join(map(re.escape, SHIPPED))})([^)]*)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the shipped files to the site, under their paths in the repository."""
    file_class = importlib.import_module("mkdocs.structure.files").File
    for name in SHIPPED:
        start = ROOT / name
        for path in [start] if start.is_file() else sorted(start.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                uri = str(path.relative_to(ROOT))
                # A Markdown file would become a page of the site.
                uri = uri.removesuffix(".md") + ".txt" if uri.endswith(".md") else uri
                files.append(file_class.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links to shipped files to their copies in the site."""
    return OUTSIDE.sub(_inside, markdown)


def _inside(link: re.Match[str]) -> str:
    path, _, anchor = (link[2] + link[3]).partition("#")
    path = path.removesuffix(".md") + ".txt" if path.endswith(".md") else path
    return f"]({link[1]}{path}{'#' + anchor if anchor and not path.endswith('.txt') else ''})"
