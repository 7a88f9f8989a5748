"""Replay dead-lettered messages automatically, and let people browse, replay, purge, export and import them.

Automatic: `policy` decides on each message, `replayer` applies the decisions to batches. Manual: `reader` reads and
removes messages, `filters` selects them, `groups` groups them by cause, `operator` replays them, `canary` replays one
first, `jsonl` exports and imports them. `sample` reads the settings of AWS's sample replayer.
"""
