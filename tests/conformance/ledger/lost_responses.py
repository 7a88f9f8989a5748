"""Database responses that never arrive."""

import contextlib
from collections.abc import Callable, Iterator
from unittest import mock

from sqlalchemy import Engine, PoolProxiedConnection


@contextlib.contextmanager
def responses_lost(
    engine: Engine, *, times: int, committed: bool, meanwhile: Callable[[], object] = int
) -> Iterator[None]:
    """Lose the response to the next COMMITs; the client cannot know whether they took effect."""
    do_commit = engine.dialect.do_commit
    left = [times]

    def lossy(connection: PoolProxiedConnection) -> None:
        if left[0] <= 0:
            do_commit(connection)
            return
        left[0] -= 1
        if committed:
            do_commit(connection)
        else:
            engine.dialect.do_rollback(connection)
        meanwhile()
        raise engine.dialect.loaded_dbapi.OperationalError("connection lost")

    with mock.patch.object(engine.dialect, "do_commit", lossy):
        yield
