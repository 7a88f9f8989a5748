"""Refuse lists of S3 objects that tell no version ids where the bucket may keep versions.

Such a list identifies objects by ETag and size, but notifications and listings of the same bucket identify them by
version id: one object would have two identities, and would be announced, or processed, a second time.
"""

from penstock.errors import ConfigurationError
from penstock.objects.s3_facts import versioning_of
from penstock.storage.aws import Aws

NEVER_VERSIONED = "never"
INVENTORY_REMEDY = "have the inventory include all versions"
LIST_REMEDY = "give each of its objects there a version_id (an empty one for an object that has none)"


def require_no_versions(bucket: str, aws: Aws, *, told_by: str, remedy: str) -> None:
    """Raise `ConfigurationError` unless S3 says that the bucket never kept versions.

    Args:
        told_by: what lists objects without version ids, as a subject: "The inventory s3://lists/manifest.json".
        remedy: what to change about it, as a clause.
    """
    try:
        versioning = versioning_of(bucket, aws)
    except ConfigurationError as error:  # no credentials
        versioning, may_not = None, f" ({str(error).rstrip('.')})"
    else:
        may_not = ""
    if versioning == NEVER_VERSIONED:
        return
    why = f"we may not ask{may_not} whether" if versioning is None else f"versioning is {versioning}, so"
    raise ConfigurationError(
        f"{told_by} tells no version ids, and {why} the bucket {bucket} keeps versions; {remedy}, or grant "
        "s3:GetBucketVersioning where there are none."
    )
