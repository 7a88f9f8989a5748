"""A psycopg connection that gives up on a silent server, and does not take a failed transaction's COMMIT for one.

The server bounds statements and the waiting for locks, as long as it lives. That it was frozen, or the network to it
cut, only the client can notice; psycopg itself would wait for ever.
"""

import time
from collections.abc import Generator
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

# Above what the server allows a statement, so that the server, where it can, says itself what was wrong.
SILENCE_SECONDS = 75.0


class BoundedConnection(psycopg.Connection[Any]):
    """Raises `psycopg.OperationalError`, and is closed, once the server has been silent for ``silence_seconds``."""

    silence_seconds: float = SILENCE_SECONDS

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        return super().wait(self._heard(gen), *args, **kwargs)

    def commit(self) -> None:
        """PostgreSQL answers the COMMIT of a failed transaction with ROLLBACK, and calls that no error."""
        if self.info.transaction_status == TransactionStatus.INERROR:
            self.rollback()
            raise psycopg.errors.InFailedSqlTransaction("a statement failed before: nothing was committed")
        super().commit()

    def _heard(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """The steps of an exchange as psycopg makes them, for as long as the server can be heard."""
        heard_at = time.monotonic()
        try:
            wants = next(gen)
            while True:
                ready = yield wants
                if ready:
                    heard_at = time.monotonic()
                elif time.monotonic() - heard_at > self.silence_seconds:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer for {self.silence_seconds:g} s")
                wants = gen.send(ready)
        except StopIteration as done:
            return done.value
