"""The user's database's clock: leases and delays of rows are counted by it, for hosts do not agree on theirs."""

from typing import Any

from sqlalchemy import Double
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class Now(FunctionElement[float]):
    """Epoch seconds by the database's clock, at this statement."""

    type = Double()
    inherit_cache = True


@compiles(Now, "sqlite")
def _sqlite(_element: Now, _compiler: Any, **_: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"  # the host's clock: there is no server


@compiles(Now, "mysql")
@compiles(Now, "mariadb")
def _mysql(_element: Now, _compiler: Any, **_: Any) -> str:
    # Not UNIX_TIMESTAMP of a local time, which is ambiguous in the hour that a change of clocks repeats.
    return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)) / 1e6)"


@compiles(Now, "postgresql")
def _postgresql(_element: Now, _compiler: Any, **_: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"
