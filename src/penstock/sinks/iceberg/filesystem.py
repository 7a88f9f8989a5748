"""Arrow's access to the files below a root that is not a local folder, for reading only."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NoReturn

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystemHandler, FileType, PyFileSystem

from penstock.storage.files import Files


def arrow_filesystem(root: Files) -> PyFileSystem:
    """Return a file system with the files below the root, by their relative paths."""
    return PyFileSystem(_FilesHandler(root))


class _FilesHandler(FileSystemHandler):  # type: ignore[misc]  # PyArrow has no types
    def __init__(self, root: Files) -> None:
        self._root = root

    def get_type_name(self) -> str:
        return "penstock"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[FileInfo]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        return [FileInfo(one.path, FileType.File, size=one.size_bytes) for one in self._root.list(selector.base_dir)]

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(_OpenFile(self._root, path), mode="r")

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise OSError("tables are only read through this file system")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse
    move = copy_file = open_output_stream = open_append_stream = _refuse

    def _info(self, path: str) -> FileInfo:
        found = self._root.stat(path)
        return (
            FileInfo(path, FileType.NotFound) if found is None else FileInfo(path, FileType.File, size=found.size_bytes)
        )


class _OpenFile:
    """An open file that ends its context when it is closed."""

    def __init__(self, root: Files, path: str) -> None:
        self._stack = ExitStack()
        self._file = self._stack.enter_context(root.open_input(path))
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def flush(self) -> None:
        """Do nothing: the file is only read."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._stack.close()
