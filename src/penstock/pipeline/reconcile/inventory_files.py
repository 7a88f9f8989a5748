"""Where the files of an inventory lie: found from its manifest, in S3 or in a folder that it was copied to."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from penstock.errors import UsageError
from penstock.pipeline.reconcile.manifest import CHECKSUM_NAME, NAME, Manifest, parse_manifest
from penstock.storage.aws import Aws
from penstock.storage.files import Files
from penstock.storage.roots import files_at

_DATED = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}-\d{2}Z/")  # the folder of each list


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """A list that can be read. ``paths`` are below ``root``."""

    uri: str  # of the manifest
    manifest: Manifest
    root: Files
    paths: Sequence[str]


def find_inventory(uri: str, aws: Aws) -> Inventory:
    """The inventory with that manifest; of a folder of several, the latest one that is whole.

    Raises `UsageError` where there is none.
    """
    folder = files_at(uri.removesuffix(NAME).rstrip("/") or "/", aws)
    if not uri.endswith(f"/{NAME}"):
        folder = folder.below(_latest(folder))
    where = f"{folder.uri}/{NAME}"
    data = _read(folder, NAME)
    if data is None:
        raise UsageError(f"There is no {where}; name the manifest of an S3 Inventory, or the folder of its lists.")
    manifest = parse_manifest(data, where=where, checksum=_read(folder, CHECKSUM_NAME))
    if folder.is_local:
        root, paths = _beside(Path(str(folder)), manifest, where)
    else:
        root, paths = files_at(f"s3://{manifest.destination_bucket}", aws), [file.key for file in manifest.files]
    return Inventory(uri=where, manifest=manifest, root=root, paths=paths)


def _latest(folder: Files) -> str:
    """Where in the folder the manifest lies: right there, or in the latest folder with a date that has a checksum,
    which comes last."""
    names = folder.names()
    if NAME in names:
        return ""
    for name in sorted(filter(_DATED.fullmatch, names), reverse=True):
        if CHECKSUM_NAME in folder.names(name.rstrip("/")):
            return name.rstrip("/")
    raise UsageError(f"{folder.uri} holds no {NAME} and no list of an S3 Inventory that is whole.")


def _beside(folder: Path, manifest: Manifest, where: str) -> tuple[Files, Sequence[str]]:
    """Files that were copied with their manifest keep their places below some folder, or lie next to it."""
    first = manifest.files[0].key if manifest.files else ""
    for root, path in _places(folder, first):
        if not first or (root / path).is_file():
            by_name = path != first
            paths = [PurePosixPath(file.key).name if by_name else file.key for file in manifest.files]
            return files_at(str(root), Aws()), paths
    raise UsageError(
        f"The file {first} of the inventory {where} is neither beside its manifest nor where it lay in its bucket; "
        "copy the files with the manifest."
    )


def _places(folder: Path, key: str) -> Iterator[tuple[Path, str]]:
    for root in (folder, *folder.parents):
        yield root, key
    name = PurePosixPath(key).name
    for root in (folder, folder / "data", folder.parent / "data"):
        yield root, name


def _read(folder: Files, name: str) -> bytes | None:
    try:
        return folder.read(name)
    except FileNotFoundError:
        return None
