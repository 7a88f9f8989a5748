"""The capabilities of each kind of broker, in one table.

This module imports no client library, so that callers can ask before the broker is opened. To add a capability, add
the field to `BrokerCapabilities`, its values here, and its row to ``scripts/broker_table.py``.
"""

from dataclasses import replace

from penstock.messaging.broker import BrokerCapabilities

EMBEDDED = BrokerCapabilities(  # the limits shared by memory, SQLite and Redis, so that one can replace another
    delay_seconds_max=14 * 86_400.0,
    release_delay_seconds_max=14 * 86_400.0,
    lease_seconds_max=12 * 3_600.0,  # per call; a lease can be extended any number of times
    body_bytes_max=1024 * 1024,  # the limit of SQS, so that every message accepted here also fits there
    receive_max=1_000,
    fenced=True,
    releases_uncounted=True,
    deduplicates=True,
    browsable=True,
    remembers_attempts=True,
    pausable=True,
)
MEMORY = replace(EMBEDDED, system="memory", in_process=True)
SQLITE = replace(EMBEDDED, system="sqlite")
REDIS = replace(EMBEDDED, system="redis", is_local=False)

SQS_BATCH_MAX = 10  # entries per call, and messages per receive call
SQS_POLLERS = 5  # receive calls that a broker makes in parallel, unless configured otherwise
_SQS_LEASE_SECONDS_MAX = 43_200.0  # from the receive, however often the lease is extended
SQS = BrokerCapabilities(  # quotas by AWS's documentation
    delay_seconds_max=900.0,
    release_delay_seconds_max=_SQS_LEASE_SECONDS_MAX,
    lease_seconds_max=_SQS_LEASE_SECONDS_MAX,
    body_bytes_max=1024 * 1024,  # body and attributes
    receive_max=SQS_BATCH_MAX * SQS_POLLERS,
    fenced=False,
    releases_uncounted=False,
    deduplicates=False,
    browsable=False,
    remembers_attempts=False,
    pausable=False,
    system="aws_sqs",
    is_local=False,
    creates_queues=False,
    ordered=False,
    exact_stats=False,
    explains_deaths=False,
    polls_are_billed=True,
    stats_are_billed=True,
    settle_batch=SQS_BATCH_MAX,
    settle_linger_seconds=0.1,  # lets batches fill: SQS bills by the request
)
