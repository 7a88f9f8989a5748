"""The bad lines of a batch's objects, as its commit records them in the ledger, and the versions that have them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.ledger import Ledger
from penstock.ledger.records import BadLines, ObjectResult
from penstock.objects.reference import ObjectRef
from penstock.objects.replays import is_replay, replay_of, source_of
from penstock.pipeline.engine import Samples


def bad_lines(
    refs: Mapping[bytes, ObjectRef],
    processed: Sequence[ObjectResult],
    *,
    attempt_id: str,
    place: str,
    samples: Samples | None = None,
) -> Sequence[BadLines]:
    """Return the bad lines of each processed object that has any. ``place``: see `BadLines`."""
    found: list[BadLines] = []
    for result in processed:
        if not result.lines_quarantined:
            continue
        ref = refs[result.object_id]
        first = next(iter((samples or {}).get(result.object_id, ())), None)
        found.append(
            BadLines(
                object_id=result.object_id,
                replay_id=replay_of(ref, attempt_id).object_id,
                bucket=ref.bucket,
                key=ref.key_bytes,
                uri=ref.uri,
                size_bytes=ref.size_bytes,
                version_id=ref.version_id,
                etag=ref.etag,
                place=place,
                rows=result.rows,
                lines_quarantined=result.lines_quarantined,
                reason=None if first is None else first[1],
            )
        )
    return found


def replays(refs: Mapping[bytes, ObjectRef], processed: Sequence[ObjectResult]) -> Sequence[bytes]:
    """Return the ids of the processed objects that are replays."""
    return [result.object_id for result in processed if is_replay((ref := refs[result.object_id]).version_id, ref.etag)]


def replay_sources(ledger: Ledger, pipeline: str, replays: Sequence[ObjectRef]) -> Mapping[bytes, ObjectRef]:
    """Return the versions from which replays read their lines, by object id of the replay.

    It is the version that had the lines. If the store keeps one version only, it is the last one that begins with it.
    """
    kept_only = [ref.object_id for ref in replays if ref.version_id is None]
    later = ledger.quarantines.continued(pipeline, kept_only) if kept_only else {}
    found = {ref.object_id: source_of(ref) for ref in replays}
    return found | {
        id: replace(found[id], size_bytes=version.size_bytes, etag=version.etag)
        for id, version in later.items()
        if version.version_id is None
    }
