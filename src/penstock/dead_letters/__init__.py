"""Dead letters: automatic replay, and the operations that people run on them.

Automatic: `policy` decides what happens to a dead-lettered message, `replayer` applies it to batches. Manual: `letters`
browses and takes messages, `filters` selects them, `groups` groups them by cause, `operator` replays or purges them,
`canary` replays one first, `jsonl` exports and imports them. `sample` reads the settings of AWS's sample replayer.
"""
