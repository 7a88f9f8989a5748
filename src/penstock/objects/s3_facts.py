"""Inspect an S3 bucket's settings and this user's permissions for sources and tables, for `penstock doctor`.

`require_no_versions` rejects lists of S3 objects without version ids if the bucket may keep versions. Such a list
identifies objects by ETag and size, but notifications and listings of the same bucket identify them by version id. An
object would then have two identities, and would be enqueued or processed twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.messaging.clock import Clock
from penstock.storage.address import S3, S3Address
from penstock.storage.aws import Aws, clock_ahead_seconds
from penstock.storage.s3 import RefusalKind, fault_of, is_identity, is_of_s3, requester, service_client

_DESTINATIONS = {  # parts of a notification configuration, and the field with each one's target
    "QueueConfigurations": "QueueArn",
    "TopicConfigurations": "TopicArn",
    "LambdaFunctionConfigurations": "LambdaFunctionArn",
}
_BRIDGE = "EventBridgeConfiguration"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationRule:
    """One rule of a bucket's notification configuration."""

    arn: str  # of a queue, a topic or a function
    events: tuple[str, ...]
    prefix: str  # decoded, like keys
    suffix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationConfiguration:
    """A bucket's notification configuration."""

    rules: tuple[NotificationRule, ...]
    to_event_bridge: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """A source's bucket and prefix. None: not visible to this user, and not needed for processing."""

    versioning: str | None  # Enabled, Suspended or never
    notices: NotificationConfiguration | None
    tried_key: str | None  # the object used to test the access; None if there is none yet
    clock_ahead_seconds: float | None


def inspect_source(address: S3Address, aws: Aws, *, clock: Clock) -> SourceFacts:
    """List the prefix and send a HEAD for its first object. Raises `ConfigurationError` and `TemporaryError`."""
    client = service_client(aws)
    listed = _call(
        f"{address} cannot be listed, which requires s3:ListBucket",
        lambda: client.list_objects_v2(Bucket=address.bucket, Prefix=address.folder, MaxKeys=1, **requester(aws)),
    )
    ahead_seconds = clock_ahead_seconds(listed, now=clock.now())
    key = next((found["Key"] for found in listed.get("Contents", ())), None)
    if key is not None:
        _call(
            f"{S3}{address.bucket}/{key} cannot be read, which requires s3:GetObject",
            lambda: client.head_object(Bucket=address.bucket, Key=key, **requester(aws)),
        )
    return SourceFacts(
        versioning=_versioning(client, address.bucket),
        notices=_notices(client, address.bucket),
        tried_key=key,
        clock_ahead_seconds=ahead_seconds,
    )


def versioning_of(bucket: str, aws: Aws) -> str | None:
    """Return "Enabled", "Suspended" or "never"; None if access is denied or the store does not respond."""
    return _versioning(service_client(aws), bucket)


def check_identity(address: S3Address, aws: Aws) -> None:
    """Raise `ConfigurationError` if S3 rejects our credentials, `TemporaryError` if it does not respond."""
    try:
        service_client(aws).list_objects_v2(Bucket=address.bucket, MaxKeys=1, **requester(aws))
    except Exception as error:
        if is_of_s3(error) and not is_identity(error) and fault_of(error).kind is not RefusalKind.PASSING:
            return
        raise _converted(f"{address} cannot be accessed", error) from error


def put_notices_again(bucket: str, aws: Aws) -> None:
    """Write the bucket's notification configuration back unchanged, so that S3 tests each target.

    If S3 cannot send to a target, it rejects the configuration and changes nothing. Raises `ConfigurationError` then,
    or if this user lacks the permission.
    """
    client = service_client(aws)
    found = _call(
        f"The notifications of {bucket} cannot be read, which requires s3:GetBucketNotification",
        lambda: client.get_bucket_notification_configuration(Bucket=bucket),
    )
    same = {name: found[name] for name in (*_DESTINATIONS, _BRIDGE) if name in found}
    _call(
        f"The notifications of {bucket} cannot be written again unchanged, which requires s3:PutBucketNotification and "
        "places that S3 may send to",
        lambda: client.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=same),
    )


def try_table(address: S3Address, aws: Aws, *, name: str) -> None:
    """Write a test file below the prefix, try a conditional put on it, then read, list and delete it.

    Raises `ConfigurationError` at the first operation that is denied or that the store does not support.
    """
    client = service_client(aws)
    key = f"{address.folder}{name}"
    file = f"{S3}{address.bucket}/{key}"
    at = {"Bucket": address.bucket, "Key": key, **requester(aws)}
    _call(f"{file} cannot be written, which requires s3:PutObject", lambda: client.put_object(**at, Body=b"penstock"))
    try:
        _check_condition(client, at, file)
        _call(f"{file} cannot be read, which requires s3:GetObject", lambda: client.get_object(**at)["Body"].read())
        _call(
            f"{address} cannot be listed, which requires s3:ListBucket",
            lambda: client.list_objects_v2(Bucket=address.bucket, Prefix=key, MaxKeys=1, **requester(aws)),
        )
    finally:
        _call(f"{file} cannot be deleted, which requires s3:DeleteObject", lambda: client.delete_object(**at))


def _check_condition(client: Any, at: Mapping[str, str], file: str) -> None:
    """Check conditional puts: if two publishers write the same version of a table, the store must refuse the second."""
    try:
        client.put_object(**at, Body=b"twice", IfNoneMatch="*")
    except Exception as error:
        if is_of_s3(error) and fault_of(error).kind is RefusalKind.CHANGED:
            return
        raise _converted(f"{file} cannot be written conditionally", error) from error
    raise ConfigurationError(
        f"{file} was overwritten despite If-None-Match: a table there would lose batches when two "
        "processes publish at once; use a store that supports conditional writes."
    )


def _versioning(client: Any, bucket: str) -> str | None:
    try:
        response = _call("versioning", lambda: client.get_bucket_versioning(Bucket=bucket))
    except PenstockError:
        return None
    return str(response.get("Status") or "never")


def _notices(client: Any, bucket: str) -> NotificationConfiguration | None:
    try:
        response = _call("notices", lambda: client.get_bucket_notification_configuration(Bucket=bucket))
    except PenstockError:
        return None
    rules = [
        _rule(each, each[arn]) for part, arn in _DESTINATIONS.items() for each in response.get(part, ()) if arn in each
    ]
    return NotificationConfiguration(rules=tuple(rules), to_event_bridge=_BRIDGE in response)


def _rule(rule: Mapping[str, Any], arn: str) -> NotificationRule:
    filters: Sequence[Mapping[str, str]] = rule.get("Filter", {}).get("Key", {}).get("FilterRules", ())
    values = {each["Name"].lower(): unquote_plus(each["Value"]) for each in filters}
    return NotificationRule(
        arn=arn,
        events=tuple(rule.get("Events", ())),
        prefix=values.get("prefix", ""),
        suffix=values.get("suffix", ""),
    )


def _call(operation: str, call: Any) -> Any:
    try:
        return call()
    except Exception as error:
        raise _converted(operation, error) from error


def _converted(operation: str, error: Exception) -> Exception:
    """Convert an error of boto3 to one of Penstock's. Return any other error unchanged."""
    if not is_of_s3(error):
        return error
    fault = fault_of(error)
    return (TemporaryError if fault.kind is RefusalKind.PASSING else ConfigurationError)(f"{operation}: {fault.text}.")


NEVER_VERSIONED = "never"
INVENTORY_REMEDY = "have the inventory include all versions"
LIST_REMEDY = "give each of its objects there a version_id (an empty one for an object that has none)"


def require_no_versions(bucket: str, aws: Aws, *, list_name: str, remedy: str) -> None:
    """Raise `ConfigurationError` unless S3 reports that the bucket never kept versions.

    Args:
        list_name: The list that has no version ids, as the subject of a sentence: "The inventory s3://lists/manifest.json".
        remedy: The change that would add version ids, as a clause.
    """
    try:
        versioning = versioning_of(bucket, aws)
    except ConfigurationError as error:  # no credentials
        versioning, cause = None, f" ({str(error).rstrip('.')})"
    else:
        cause = ""
    if versioning == NEVER_VERSIONED:
        return
    status = f"unknown{cause}" if versioning is None else versioning
    raise ConfigurationError(
        f"{list_name} has no version ids, and the bucket {bucket} may keep versions (versioning: {status}); {remedy}, "
        "or, if it keeps none, grant s3:GetBucketVersioning."
    )
