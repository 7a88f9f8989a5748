"""PyIceberg's access to a table's metadata files, through the file operations that all of Penstock uses.

So metadata has the same credentials, durability and errors as all other files.
"""

import io
from typing import Any

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream

from penstock.errors import TableError
from penstock.storage.files import Files


class TableFileIO(FileIO):
    """The files below a table's location. Locations are the root's text, a slash and a relative path."""

    def __init__(self, root: Files) -> None:
        super().__init__()
        self._root = root

    def new_input(self, location: str) -> "TableInput":
        return TableInput(self._root, self.relative(location), location)

    def new_output(self, location: str) -> "TableOutput":
        return TableOutput(self._root, self.relative(location), location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._root.delete([self.relative(location if isinstance(location, str) else location.location)])

    def relative(self, location: str) -> str:
        """Return the path below the root. Raises `TableError` for a file elsewhere."""
        path = relative_path(self._root, location)
        if path is None:
            raise TableError(
                f"The table {self._root.uri} has metadata elsewhere ({location}), which Penstock does not read; move "
                "it into the table's folder, or write to another table."
            )
        return path


def relative_path(root: Files, location: str) -> str | None:
    """Return a location's path below the root; None if it is elsewhere."""
    for prefix in {f"{root}/", f"file://{root}/", f"file:{root}/"} if root.is_local else {f"{root}/"}:
        if location.startswith(prefix):
            return location[len(prefix) :]
    return None


def is_root(root: Files, location: str) -> bool:
    """Return True if a table's location is this root, however it is spelled."""
    return relative_path(root, f"{location}/x") == "x"


class TableInput(InputFile):
    """One metadata file, read whole: PyIceberg reads all of it in any case."""

    def __init__(self, root: Files, path: str, location: str) -> None:
        super().__init__(location)
        self._root = root
        self._path = path

    def __len__(self) -> int:
        found = self._root.stat(self._path)
        if found is None:
            raise FileNotFoundError(self.location)
        return found.size_bytes

    def exists(self) -> bool:
        return self._root.stat(self._path) is not None

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002 -- PyIceberg's interface
        return io.BytesIO(self._root.read(self._path))


class TableOutput(OutputFile):
    """One new metadata file, which appears complete when its stream is closed without an error."""

    def __init__(self, root: Files, path: str, location: str) -> None:
        super().__init__(location)
        self._root = root
        self._path = path
        self._size_bytes: int | None = None

    def __len__(self) -> int:
        return len(self.to_input_file()) if self._size_bytes is None else self._size_bytes

    def exists(self) -> bool:
        return self._root.stat(self._path) is not None

    def to_input_file(self) -> TableInput:
        return TableInput(self._root, self._path, self.location)

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: ARG002 -- PyIceberg's interface
        """Return the stream. Names are unique, so there is nothing to overwrite."""
        return _BufferedOutput(self)

    def complete(self, data: bytes) -> None:
        """Write the file."""
        self._root.write(self._path, data)
        self._size_bytes = len(data)


class _BufferedOutput(io.BytesIO):
    """The content of one file in memory, written when the stream is closed without an error."""

    def __init__(self, file: TableOutput) -> None:
        super().__init__()
        self._file = file
        self._failed = False

    def __exit__(self, kind: Any, *rest: Any) -> None:
        self._failed = kind is not None
        super().__exit__(kind, *rest)

    def close(self) -> None:
        if not (self.closed or self._failed):
            self._file.complete(self.getvalue())
        super().close()
