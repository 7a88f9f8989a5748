"""When a refusal to read says nothing of the object.

A permission that was taken away, a policy with a mistake in it, or a disk that fails refuses one object after another.
Were each of them charged an attempt for it, all would be dead letters before anybody had looked. So a refusal is
charged while it can be the object's own: as long as no other object was refused since the last one that could be read.
"""

import threading

OBJECTS_REMEMBERED_MAX = 1_000


class Denials:
    """The refusals of one handler or pipeline in this process. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._denied: set[bytes] = set()  # under the lock: since the last object that could be read

    def add(self, object_id: bytes) -> bool:
        """Record a refusal; answers whether others were refused too, so that this one is hardly the object's fault."""
        with self._lock:
            others = bool(self._denied - {object_id})
            if len(self._denied) < OBJECTS_REMEMBERED_MAX:
                self._denied.add(object_id)
        return others

    def clear(self) -> None:
        """An object could be read."""
        if self._denied:
            with self._lock:
                self._denied.clear()
