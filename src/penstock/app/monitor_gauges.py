"""From a look of the monitor to gauges: each has the series of that look and no others."""

from collections.abc import Mapping

from penstock.app.monitor_look import Look

Samples = Mapping[tuple[str, ...], float]


def gauges(look: Look) -> Mapping[str, Samples]:
    """Every gauge that the monitor sets, by its name in the catalogue; empty where nothing could be seen."""
    queues, letters, pipelines = look.queues, look.dead_letters, look.pipelines
    return {
        "queue_messages": {
            (one.queue, state): count
            for one in queues
            for state, count in (("visible", one.visible), ("in_flight", one.in_flight), ("delayed", one.delayed))
        },
        "queue_oldest_message_age_seconds": {
            (one.queue, one.oldest_message_age_source): one.oldest_message_age_seconds
            for one in queues
            if one.oldest_message_age_seconds is not None
        },
        "queue_oldest_visible_message_age_seconds": {
            (one.queue, one.oldest_visible_message_age_source): one.oldest_visible_message_age_seconds
            for one in queues
            if one.oldest_visible_message_age_seconds is not None
        },
        "dead_letters": {(one.queue, one.tier): one.letters for one in letters},
        "dead_letter_oldest_age_seconds": {
            (one.queue, one.tier): one.oldest_age_seconds for one in letters if one.oldest_age_seconds is not None
        },
        "objects": {(one.pipeline, state): count for one in pipelines for state, count in one.objects.items()},
        "object_oldest_unprocessed_age_seconds": {
            (one.pipeline,): one.oldest_unprocessed_age_seconds for one in pipelines
        },
        "objects_overdue": {(one.pipeline,): one.overdue for one in pipelines},
        "objects_missing": {(one.pipeline,): one.missing for one in pipelines if one.missing is not None},
        "commit_to_publish_lag_seconds": {
            (one.pipeline,): one.commit_to_publish_lag_seconds
            for one in pipelines
            if one.commit_to_publish_lag_seconds is not None
        },
        "monitor_up": {(source,): float(up) for source, up in look.up.items()},
    }
