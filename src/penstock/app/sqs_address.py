"""The address of SQS: `sqs://`, or `sqs://REGION`. Everything else stands in AWS's own settings or in ours."""

import re
from dataclasses import replace

from penstock.config import shown
from penstock.errors import ConfigurationError
from penstock.storage.aws import Aws

SQS = "sqs://"

_REGION = re.compile(r"[a-z]{2,}(-[a-z]+)+-\d+")


def is_sqs(address: str) -> bool:
    """Whether this means SQS, be it in order or not."""
    return address.startswith(SQS)


def aws_of(address: str, aws: Aws) -> Aws:
    """What the settings say of AWS, in the address's region if it names one. Raises `ConfigurationError`."""
    region = address.removeprefix(SQS).rstrip("/")
    if not region:
        return aws
    if not _REGION.fullmatch(region):
        raise ConfigurationError(
            f"The broker's address {shown('broker', address)!r} cannot be read: write sqs:// or sqs://REGION, as in "
            "sqs://eu-west-1; queues are named elsewhere, and another server by aws_endpoint_url."
        )
    return replace(aws, region=region)
