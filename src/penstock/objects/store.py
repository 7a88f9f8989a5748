"""What an object store does for a reader: hand out exactly the version that was announced, or say why it cannot."""

from types import TracebackType
from typing import Protocol, Self

from penstock.objects.reference import ObjectRef


class ObjectReader(Protocol):
    """One version of one object, open. A context manager; not shared between threads.

    Reading raises `ObjectSuperseded` or `ObjectUnreadable`; what was read counts once `verify` has passed.
    """

    @property
    def ref(self) -> ObjectRef:
        """The version that is open."""
        ...

    def read(self, size_bytes: int = -1, /) -> bytes:
        """The next bytes, at most that many (-1: all the rest), fewer only at the end; b"" at the end."""
        ...

    def pread(self, offset: int, length_bytes: int) -> bytes:
        """That range, shorter only where the object ends; does not move `read`."""
        ...

    def verify(self) -> None:
        """Raise `ObjectSuperseded` unless all that was read so far came from this version."""
        ...

    def close(self) -> None:
        """Free what the reader holds; a second call does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ObjectStore(Protocol):
    """Where objects are. Small and picklable: it travels to Spark's executors."""

    def open(self, ref: ObjectRef) -> ObjectReader:
        """Open this version. Raises `ObjectGone`, `ObjectSuperseded` or `ObjectUnreadable`."""
        ...

    def read_range(self, ref: ObjectRef, offset: int, length_bytes: int) -> bytes:
        """A verified range of this version, shorter only where the object ends. Raises as `open` and reading do."""
        ...
