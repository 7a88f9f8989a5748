"""A Python with chosen packages of this environment and no others, as on the hosts of a cluster that lacks Penstock."""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

_NAME = re.compile(r"[\w.-]+")


def bare_python(folder: Path, packages: Sequence[str]) -> Path:
    """Make a virtual environment below ``folder`` with these distributions and their requirements; return its Python.

    The packages are links to those of this environment. The Python is the one that this environment is based on.
    """
    site_packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    site_packages.mkdir(parents=True)
    for name in sorted(_with_requirements(packages)):
        for entry in _entries(name):
            link = site_packages / entry.name
            if not link.exists():  # distributions may share a namespace package
                link.symlink_to(entry)
    python = folder / "bin" / "python3"
    python.parent.mkdir()
    base = Path(os.path.realpath(sys.executable))
    python.symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    return python


def _with_requirements(packages: Sequence[str]) -> set[str]:
    """Return the names with those of all installed requirements, without the requirements of extras."""
    found: set[str] = set()
    left = [name.lower() for name in packages]
    while left:
        name = left.pop()
        if name in found:
            continue
        try:
            requirements = distribution(name).requires or ()
        except PackageNotFoundError:
            assert name not in packages, f"{name} is not installed here"
            continue  # another platform needs it
        found.add(name)
        for requirement in requirements:
            begin = _NAME.match(requirement)
            if begin is not None and "extra ==" not in requirement:
                left.append(begin.group().lower())
    return found


def _entries(name: str) -> Iterator[Path]:
    """Yield the files and folders of a distribution directly below site-packages."""
    found = distribution(name)
    tops = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
    for top in sorted(tops):
        yield Path(str(found.locate_file(top)))
