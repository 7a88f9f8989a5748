"""Compactions and the gc of their leftovers, explored completely: no version names a file that gc deletes.

A compaction; two passes of gc that may each stop anywhere and begin again; other processes that commit versions. Any of
them may be paused between two steps for any time, and a paused compaction still continues at the end. The model shares
no code with the product; `Mutation` names the rules that can be dropped.
"""

from collections.abc import Iterator
from enum import Flag, auto
from typing import NamedTuple

import pytest

VERSIONS_MAX = 4


class Mutation(Flag):
    NONE = 0
    DELETES_AT_ONCE = auto()  # gc does not wait for a version after the noted one
    NOTES_BEFORE_MARK = auto()  # the noted version was loaded before the mark existed
    CHECK_BEFORE_LOAD = auto()  # the compaction checks for the mark and then loads the table
    NO_MARK = auto()  # the compaction does not check for the mark
    NO_FILE_CHECK = auto()  # the compaction does not check that its files exist
    MARK_DELETED_FIRST = auto()
    LOG_UNREAD = auto()  # gc does not check whether the log names the folder


class State(NamedTuple):
    version: int = 0  # of the table
    named: bool = False  # the log names the folder's file
    file: bool = True
    mark: bool = False
    noted: int = -1  # -1: no note
    compaction: str = "start"  # start | half | checked | ready | ended
    loaded: int = -1
    gc: str = "idle"  # idle | marking | deciding | deleting | unmarking
    seen: int = -1  # the version that gc has read


def moves(s: State, m: Mutation) -> Iterator[tuple[str, State]]:
    if s.version < VERSIONS_MAX:
        yield "another commits", s._replace(version=s.version + 1)
    yield from _compaction(s, m)
    yield from _gc(s, m)
    if s.gc != "idle":
        yield "gc dies", s._replace(gc="idle", seen=-1)


def _compaction(s: State, m: Mutation) -> Iterator[tuple[str, State]]:
    first, second = ("check", "load") if Mutation.CHECK_BEFORE_LOAD in m else ("load", "check")
    if s.compaction == "start":
        yield first, _step(s, first, "half", m)
    elif s.compaction == "half":
        yield second, _step(s, second, "checked", m)
    elif s.compaction == "checked":  # then it checks its files
        deleted = not s.file and Mutation.NO_FILE_CHECK not in m
        yield "checks its files", s._replace(compaction="ended" if deleted else "ready")
    elif s.compaction == "ready":
        if s.version == s.loaded:
            yield "commits", s._replace(version=s.version + 1, named=True, compaction="ended")
        else:
            yield "meets a conflict", s._replace(compaction="start", loaded=-1)


def _step(s: State, action: str, then: str, m: Mutation) -> State:
    if action == "load":
        return s._replace(loaded=s.version, compaction=then)
    return s._replace(compaction="ended" if s.mark and Mutation.NO_MARK not in m else then)


def _gc(s: State, m: Mutation) -> Iterator[tuple[str, State]]:
    unnamed = not s.named or Mutation.LOG_UNREAD in m
    if s.gc == "idle" and (s.file or s.mark) and unnamed:
        if s.noted < 0:
            if Mutation.NOTES_BEFORE_MARK in m:
                yield "gc loads", s._replace(gc="marking", seen=s.version)
            else:
                yield "gc marks", s._replace(gc="marking", mark=True)
        elif s.version > s.noted or Mutation.DELETES_AT_ONCE in m:
            yield "gc reads the note and the table", s._replace(gc="deciding")
    elif s.gc == "marking":
        if Mutation.NOTES_BEFORE_MARK in m:
            yield "gc marks and notes", s._replace(gc="idle", mark=True, noted=s.seen, seen=-1)
        elif s.seen < 0:
            yield "gc loads", s._replace(seen=s.version)
        else:
            yield "gc notes", s._replace(gc="idle", noted=s.seen, seen=-1)
    elif s.gc == "deciding":  # the log is read after the table
        yield "gc reads the log", s._replace(gc="deleting" if unnamed else "idle")
    elif s.gc == "deleting":
        if Mutation.MARK_DELETED_FIRST in m:
            yield "gc deletes the mark", s._replace(gc="unmarking", mark=False, noted=-1)
        else:
            yield "gc deletes the file", s._replace(gc="unmarking", file=False)
    elif s.gc == "unmarking":
        yield "gc ends", s._replace(gc="idle", file=False, mark=False, noted=-1)


def explore(m: Mutation) -> tuple[int, bool, bool]:
    """Return the number of states, and whether any names a deleted file, and whether any has collected everything."""
    seen, waiting = {State()}, [State()]
    while waiting:
        for _, state in moves(waiting.pop(), m):
            if state not in seen:
                seen.add(state)
                waiting.append(state)
    return (
        len(seen),
        any(state.named and not state.file for state in seen),
        any(not (state.named or state.file or state.mark) for state in seen),
    )


def test_no_version_of_the_table_names_a_file_that_gc_deleted() -> None:
    states, lost, collected = explore(Mutation.NONE)
    assert (lost, collected) == (False, True)
    assert states > 500


@pytest.mark.parametrize("mutation", [one for one in Mutation if one], ids=lambda one: str(one.name))
def test_dropping_a_rule_loses_rows(mutation: Mutation) -> None:
    _, lost, _ = explore(mutation)
    assert lost
