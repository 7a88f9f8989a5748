"""A Python of this version with its own packages: one that lacks Penstock, or anything else."""

import re
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

_NAME = re.compile(r"[\w.-]+")


def bare_python(folder: Path, packages: Iterable[str]) -> Path:
    """Make a virtual environment in ``folder`` and return its program.

    It has only ``packages``, which are names of distributions, and their dependencies: links into this environment.
    """
    site = site_packages(folder)
    site.mkdir(parents=True)
    base = Path(sys._base_executable)  # type: ignore[attr-defined]
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    program = folder / "bin" / "python3"
    program.parent.mkdir()
    program.symlink_to(base)
    for one in _with_dependencies(packages):
        for name in _top_level(one):
            link = site / name
            if not link.is_symlink():
                link.symlink_to(Path(str(one.locate_file(name))))
    return program


def site_packages(folder: Path) -> Path:
    """Return the folder of the environment's packages."""
    return folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def _with_dependencies(packages: Iterable[str]) -> Iterator[Distribution]:
    waiting, seen = list(packages), set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            one = distribution(name)
        except PackageNotFoundError:  # not needed by this version of Python
            continue
        yield one
        requirements = [text for text in one.requires or () if "extra ==" not in text]
        waiting += [found.group() for text in requirements if (found := _NAME.match(text))]


def _top_level(one: Distribution) -> set[str]:
    """Return the names of its files and folders in site-packages."""
    return {file.parts[0] for file in one.files or () if file.parts[0] not in ("..", "__pycache__")}
