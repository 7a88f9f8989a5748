"""Diagnose failures from log lines: of any number of workers, in any order and any common wrapping.

No I/O: lines go in, findings come out. `docs/fix/logs.md` has the same questions as queries for other tools.
"""

from penstock.monitoring.diagnoses.diagnoser import Diagnoser
from penstock.monitoring.diagnoses.findings import Diagnoses, Found, LaterAttempt, OutageFinding, Story
from penstock.monitoring.diagnoses.lines import LogLine, Unwrapping

__all__ = ["Diagnoser", "Diagnoses", "Found", "LaterAttempt", "LogLine", "OutageFinding", "Story", "Unwrapping"]
