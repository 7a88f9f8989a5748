"""Ship modules to the executors of a cluster as zip files: Penstock's own version, and the user's (``spark.py_files``).

Wheels with compiled code cannot be imported from a zip: `penstock.pipeline.spark.probe` checks that the executors have
those, and `penstock admin spark pack` writes an archive of them.
"""

import hashlib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from penstock.errors import ConfigurationError
from penstock.pipeline.spark.runtime import SparkRuntime

PARTS_OUT = frozenset({"__pycache__", "cli", "jdk4py_home", "testing"})  # of Penstock, that no task imports
ARCHIVES = frozenset({".zip", ".whl", ".egg"})
_TIME = (1980, 1, 1, 0, 0, 0)  # the same in each build: the name of the archive is its content's digest


def ship(runtime: SparkRuntime, modules: Sequence[Path] = ()) -> None:
    """Send Penstock and the user's modules to the executors of a session. Does nothing if all tasks run here.

    Repeating it with the same modules costs little. Raises like `module_archive`.
    """
    if runtime.is_local:
        return
    with TemporaryDirectory(prefix="penstock-ship-") as name:
        for path in modules:
            runtime.add_package(module_archive(path, Path(name)))
        runtime.add_package(package_archive(Path(name)))


def package_archive(folder: Path) -> Path:
    """Write Penstock into a zip file below ``folder`` and return its path, named by its content."""
    return _archived(folder, "penstock", _below(Path(str(files("penstock"))), without=PARTS_OUT))


def module_archive(path: Path, folder: Path) -> Path:
    """Return a zip file, written below ``folder``, with a module (a .py file) or a package (a folder) of the user's.

    A path of a zip file, wheel or egg is returned as it is. Raises `ConfigurationError` for other paths.
    """
    if path.is_dir():
        return _archived(folder, path.name, _below(path.resolve(), without=frozenset({"__pycache__"})))
    if path.is_file() and path.suffix == ".py":
        return _archived(folder, path.stem, [(path.name, path)])
    if path.is_file() and path.suffix in ARCHIVES:
        return path
    problem = "is none of these" if path.exists() else "does not exist"
    raise ConfigurationError(
        f"spark.py_files names modules (.py), packages (folders), and archives (.zip, .whl); {path} {problem}."
    )


def _archived(folder: Path, name: str, entries: Iterable[tuple[str, Path]]) -> Path:
    contents = [(inside, path.read_bytes()) for inside, path in entries]
    digest = hashlib.sha256()
    for inside, content in contents:
        digest.update(f"{inside}\0{len(content)}\0".encode() + content)
    archive = folder / f"{name}-{digest.hexdigest()[:16]}.zip"
    if archive.exists():
        return archive
    folder.mkdir(parents=True, exist_ok=True)
    half_written = archive.with_suffix(".part")
    folders = {f"{parent}/" for inside, _ in contents for parent in PurePosixPath(inside).parents if parent.name}
    with zipfile.ZipFile(half_written, "w", zipfile.ZIP_DEFLATED) as file:
        for parent in sorted(folders):  # without these entries, packages without an __init__.py could not be imported
            file.writestr(zipfile.ZipInfo(parent, _TIME), b"")
        for inside, content in contents:
            file.writestr(zipfile.ZipInfo(inside, _TIME), content, zipfile.ZIP_DEFLATED)
    half_written.replace(archive)
    return archive


def _below(root: Path, *, without: frozenset[str]) -> Iterator[tuple[str, Path]]:
    """Yield the files of a package with their names in the archive, in a fixed order."""
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        if path.is_file() and without.isdisjoint(inside.parts):
            yield f"{root.name}/{inside.as_posix()}", path
