"""A psycopg connection that times out on a silent server and detects the COMMIT of a failed transaction.

The server limits statements and lock waits while it runs. Only the client can notice a frozen server or a cut network;
psycopg would wait forever.
"""

import time
from collections.abc import Generator
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

# longer than the server's statement_timeout, so that the server reports the cause if it can
SILENCE_SECONDS = 75.0


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that raises `psycopg.OperationalError` and closes after ``silence_seconds`` without a reply."""

    silence_seconds: float = SILENCE_SECONDS

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        return super().wait(self._heard(gen), *args, **kwargs)

    def commit(self) -> None:
        """Commit; raise if a statement failed before. PostgreSQL replies to that COMMIT with ROLLBACK and no error."""
        if self.info.transaction_status == TransactionStatus.INERROR:
            self.rollback()
            raise psycopg.errors.InFailedSqlTransaction("a statement failed before: nothing was committed")
        super().commit()

    def _heard(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Run the steps of psycopg's exchange; raise once the server has been silent too long."""
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
