"""From the settings to how the dead letters of a queue come back."""

from penstock.config import ReplayQueue, Settings
from penstock.messaging.broker import listed_name
from penstock.replay.policy import ReplayPolicy
from penstock.replay.sample import SampleSettings

_AS_ALL = ReplayQueue()


def with_sample(settings: Settings, sample: SampleSettings) -> Settings:
    """These settings, and of the AWS sample's those that nothing of ours says."""
    theirs = {
        "replays_max": sample.replays_max,
        "replay_base_seconds": sample.base_seconds,
        "replay_cap_seconds": sample.cap_seconds,
    }
    ours = settings.model_fields_set
    update = {name: value for name, value in theirs.items() if value is not None and name not in ours}
    return settings.model_copy(update=update)


def replay_policy(settings: Settings, queue: str) -> ReplayPolicy | None:
    """Of one queue, which may be named by URL or ARN; None where its dead letters stay where they are."""
    own = settings.replay_queues.get(queue) or settings.replay_queues.get(listed_name(queue)) or _AS_ALL
    if own.off:
        return None
    return ReplayPolicy(
        replays_max=settings.replays_max if own.replays_max is None else own.replays_max,
        base_seconds=settings.replay_base_seconds if own.base_seconds is None else own.base_seconds,
        cap_seconds=settings.replay_cap_seconds if own.cap_seconds is None else own.cap_seconds,
    )
