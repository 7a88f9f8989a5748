"""The interface of an object store for readers: return exactly the version that was requested, or raise."""

from types import TracebackType
from typing import Protocol, Self

from penstock.objects.reference import ObjectRef


class ObjectReader(Protocol):
    """A reader of one version of one object, and a context manager. Not thread-safe.

    Reading raises `ObjectSuperseded` or `ObjectUnreadable`. Data may be used only after `verify` has passed.
    """

    @property
    def ref(self) -> ObjectRef:
        """The version that is open."""
        ...

    def read(self, size_bytes: int = -1, /) -> bytes:
        """Return up to ``size_bytes`` of the next bytes (-1: all the rest); fewer only at the end, b"" at the end."""
        ...

    def pread(self, offset: int, length_bytes: int) -> bytes:
        """Return this range, shorter only at the end of the object. Does not move the position of `read`."""
        ...

    def verify(self) -> None:
        """Raise `ObjectSuperseded` unless all data read so far is of this version."""
        ...

    def close(self) -> None:
        """Free the reader's resources. A second call does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ObjectStore(Protocol):
    """A source of objects. Small and picklable, since it is sent to Spark's executors."""

    def open(self, ref: ObjectRef) -> ObjectReader:
        """Open this version. Raise `ObjectGone`, `ObjectSuperseded` or `ObjectUnreadable` on failure."""
        ...

    def read_range(self, ref: ObjectRef, offset: int, length_bytes: int) -> bytes:
        """Return a verified range of this version, shorter only at the object's end. Raises as `open` and `read`."""
        ...
