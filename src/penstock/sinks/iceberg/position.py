"""The positions of pipelines in an Iceberg table: one table property for each pipeline.

A commit changes the property together with its snapshot. Every snapshot of Penstock repeats all positions in its
summary, which also names the pipeline that moved. So a position survives other writers' commits, expired snapshots and
added columns, and the history tells which commit moved it. As in a Delta table, a rollback by another writer does not
move it back: the rows that the table then lacks are reported, not published again.
"""

import hashlib
import json
from collections.abc import Mapping

from penstock.sinks.sink import Position

PREFIX = "penstock.position."
MOVED = "penstock.moved"  # in a summary: the property that this commit changed


def property_of(pipeline: str) -> str:
    """Return the name of a pipeline's property. A digest, since some catalogs limit its length and characters."""
    return f"{PREFIX}{hashlib.sha256(pipeline.encode(errors='surrogateescape')).hexdigest()[:24]}"


def encoded(position: Position, pipeline: str) -> str:
    """Return the value of a pipeline's property. It names the pipeline for people."""
    return json.dumps({"seq": position.seq, "attempt": position.attempt_token, "pipeline": pipeline})


def position_in(fields: Mapping[str, str], pipeline: str) -> Position | None:
    """Return the pipeline's position in a table's properties or a snapshot's summary; None if it has none."""
    text = fields.get(property_of(pipeline))
    if text is None:
        return None
    found = json.loads(text)
    return Position(seq=found["seq"], attempt_token=found["attempt"])


def positions(properties: Mapping[str, str]) -> Mapping[str, str]:
    """Return the positions of all pipelines, as properties."""
    return {name: value for name, value in properties.items() if name.startswith(PREFIX)}
