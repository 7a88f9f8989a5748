"""Announcements: an object -> the body of a message that `notification.parse` reads back as the same object.

They have the shape of S3's own notifications, so that one reader does for what S3 sends and for what we send ourselves:
for local files, and later for objects that S3 never announced.
"""

import json
from urllib.parse import quote_plus

from penstock.objects.notification import LOCAL_SOURCE
from penstock.objects.reference import LOCAL_BUCKET, ObjectRef

OWN_SOURCE = "penstock:s3"  # an object in S3 that we announce ourselves


def announce(ref: ObjectRef) -> bytes:
    """The body of a message that announces one object; the same for the same object. The key is encoded as S3 does."""
    described = {
        "key": quote_plus(ref.key_bytes, safe="/"),
        "size": ref.size_bytes,
        "eTag": ref.etag,
        "versionId": ref.version_id,
        "sequencer": ref.sequencer,
    }
    record = {
        "eventVersion": "2.1",
        "eventSource": LOCAL_SOURCE if ref.bucket == LOCAL_BUCKET else OWN_SOURCE,
        "eventName": "ObjectCreated:Put",
        "s3": {
            "bucket": {"name": ref.bucket},
            "object": {name: value for name, value in described.items() if value is not None},
        },
    }
    return json.dumps({"Records": [record]}, separators=(",", ":")).encode()
