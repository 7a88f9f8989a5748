"""Announcements of what Penstock writes itself.

A bucket that announces all of its objects announces those of a table in it, too: plans, logs and Parquet. Were they
read like others, each batch would bring the next one. A listing leaves them out, and so do notifications.
"""

from collections.abc import Sequence
from dataclasses import replace

from penstock.objects.notification import Ignored, Notification, parse
from penstock.storage.address import S3Address


def parse_others(body: bytes, *, buckets_allowed: frozenset[str] | None, own: Sequence[S3Address]) -> Notification:
    """What `parse` reads, without the objects that lie in our ``own`` places: these are ignored."""
    found = parse(body, buckets_allowed=buckets_allowed)
    ours = {ref.object_id for ref in found.objects if any(place.holds(ref.bucket, ref.key) for place in own)}
    if not ours:
        return found
    return replace(
        found,
        objects=tuple(ref for ref in found.objects if ref.object_id not in ours),
        ignored=(
            *found.ignored,
            *(Ignored(event="ObjectCreated", uri=ref.uri) for ref in found.objects if ref.object_id in ours),
        ),
    )
