-- The statements of the SQLite queue, by name. `:ids` is a JSON list of message ids.

-- name: store_id
SELECT id FROM store

-- name: queue
SELECT id, name, dead_letter_queue, receives_max, retention_seconds, ring_end, paused, clock_at
FROM queues
WHERE name = :name

-- name: add_queue
INSERT INTO queues (name, dead_letter_queue, receives_max, retention_seconds)
VALUES (:name, :dead_letter_queue, :receives_max, :retention_seconds)
ON CONFLICT (name) DO NOTHING

-- name: configure_queue
INSERT INTO queues (name, dead_letter_queue, receives_max, retention_seconds)
VALUES (:name, :dead_letter_queue, :receives_max, :retention_seconds)
ON CONFLICT (name) DO UPDATE SET
    dead_letter_queue = excluded.dead_letter_queue,
    receives_max = excluded.receives_max,
    retention_seconds = excluded.retention_seconds

-- name: queue_names
SELECT name FROM queues ORDER BY name

-- name: is_dead_letter_queue
SELECT EXISTS (SELECT 1 FROM queues WHERE dead_letter_queue = :name)

-- name: last_id
SELECT COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'messages'), 0)

-- name: insert
INSERT INTO messages (id, queue_id, state, visible_at, enqueued_at, grp, attributes, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: join_ring
INSERT INTO ring (queue_id, grp, place) VALUES (?, ?, ?) ON CONFLICT (queue_id, grp) DO NOTHING

-- name: set_ring_end
UPDATE queues SET ring_end = :ring_end WHERE id = :queue_id

-- name: set_paused
UPDATE queues SET paused = :paused WHERE id = :queue_id

-- name: forget_deduplications
DELETE FROM deduplications WHERE until <= :now

-- name: deduplicated
SELECT seq FROM deduplications WHERE queue_id = :queue_id AND deduplication_id = :deduplication_id

-- name: remember_deduplication
INSERT INTO deduplications (queue_id, deduplication_id, until, seq) VALUES (?, ?, ?, ?)

-- Return 1 if a message is due or expired. Runs without the write lock, so that an idle queue blocks no writer.
-- name: anything_to_do
SELECT EXISTS (SELECT 1 FROM messages WHERE queue_id = :queue_id AND state <> 0 AND visible_at <= :now)
    OR EXISTS (
        SELECT 1 FROM messages WHERE queue_id = :queue_id AND enqueued_at <= :now - :retention_seconds AND state <> 2
    )

-- name: anything_ready
SELECT EXISTS (SELECT 1 FROM ring WHERE queue_id = :queue_id)

-- name: due
SELECT id, grp, receive_count - refunds
FROM messages
WHERE queue_id = :queue_id AND state <> 0 AND visible_at <= :now
ORDER BY visible_at, id
LIMIT :rows_max

-- An expired lease is a failure at the moment it expired. The last ten attempts are kept, here and in `release` and
-- `release_dead`.
-- name: wake
UPDATE messages SET
    first_failed_at = CASE state WHEN 2 THEN COALESCE(first_failed_at, visible_at) ELSE first_failed_at END,
    last_failed_at = CASE state WHEN 2 THEN visible_at ELSE last_failed_at END,
    unsuccessful = unsuccessful + (state = 2),
    ended = CASE state WHEN 2 THEN 'expired' ELSE ended END,
    ended_at = CASE state WHEN 2 THEN visible_at ELSE ended_at END,
    tries = CASE state
        WHEN 2 THEN json_insert(
            CASE
                WHEN json_array_length(COALESCE(tries, '[]')) < 10 THEN COALESCE(tries, '[]')
                ELSE json_remove(tries, '$[0]')
            END,
            '$[#]',
            json_array(leased_at, visible_at, holder, 'expired', NULL)
        )
        ELSE tries
    END,
    state = 0
WHERE id IN (SELECT value FROM json_each(:ids))

-- The age of a message restarts at the end of every third unsuccessful delivery. This is not part of `wake` and
-- `release`, because naming an indexed column there would write its index every time, not only every third time.
-- name: reset_ages
UPDATE messages SET age_from = ended_at
WHERE id IN (SELECT value FROM json_each(:ids)) AND unsuccessful > 0 AND unsuccessful % 3 = 0

-- A lease cannot have more time left than its length, unless the clock was set back since it began: then it restarts.
-- `state <> 0` is redundant, but limits SQLite to the waiting messages.
-- name: shorten_leases
UPDATE messages SET visible_at = :now + lease_seconds
WHERE queue_id = :queue_id AND state = 2 AND state <> 0 AND visible_at > :now + lease_seconds

-- A delay cannot be longer than requested, unless the clock was set back since it began: then it restarts. It began at
-- the end of a delivery, or when a message that was not delivered since was sent or dead-lettered.
-- name: shorten_delays
UPDATE messages SET
    visible_at = :now + MAX(0, visible_at - COALESCE(ended_at, enqueued_at)),
    enqueued_at = CASE WHEN ended_at IS NULL THEN :now ELSE enqueued_at END,
    ended_at = CASE WHEN ended_at IS NULL THEN NULL ELSE :now END
WHERE queue_id = :queue_id AND state = 1 AND state <> 0 AND COALESCE(ended_at, enqueued_at) > :now

-- name: set_clock
UPDATE queues SET clock_at = :now WHERE name IN (SELECT value FROM json_each(:names))

-- name: expired
SELECT id
FROM messages
WHERE queue_id = :queue_id AND enqueued_at <= :now - :retention_seconds AND state <> 2
ORDER BY enqueued_at, id
LIMIT :rows_max

-- name: count_dropped
UPDATE queues SET dropped = dropped + :count WHERE id = :queue_id

-- name: dropped
SELECT dropped FROM queues WHERE name = :name

-- name: delete
DELETE FROM messages WHERE id IN (SELECT value FROM json_each(:ids))

-- name: discard
DELETE FROM messages WHERE queue_id = :queue_id AND id IN (SELECT value FROM json_each(:ids))

-- name: tidy_ring
DELETE FROM ring
WHERE queue_id = :queue_id
    AND NOT EXISTS (
        SELECT 1 FROM messages WHERE messages.queue_id = ring.queue_id AND messages.grp = ring.grp AND state = 0
    )

-- name: next_groups
SELECT grp FROM ring WHERE queue_id = :queue_id ORDER BY place LIMIT :groups_max

-- The oldest ready messages of each of the next groups. CROSS JOIN keeps SQLite from reversing the join.
-- name: heads
SELECT groups.grp, messages.id
FROM (SELECT grp, place FROM ring WHERE queue_id = :queue_id ORDER BY place LIMIT :groups_max) AS groups
CROSS JOIN messages ON messages.id IN (
    SELECT oldest.id FROM messages AS oldest
    WHERE oldest.queue_id = :queue_id AND oldest.grp = groups.grp AND oldest.state = 0
    ORDER BY oldest.id
    LIMIT :quota
)
ORDER BY groups.place, messages.id

-- name: lease
UPDATE messages SET
    state = 2,
    visible_at = :now + :lease_seconds,
    holder = :holder,
    receive_count = receive_count + 1,
    leased_at = :now,
    lease_seconds = :lease_seconds,
    ended = NULL,
    ended_at = NULL,
    end_reason = NULL
WHERE id IN (SELECT value FROM json_each(:ids))

-- Read before `lease`, while the end of the previous delivery is still recorded.
-- name: messages
SELECT
    id, body, enqueued_at, attributes, grp, receive_count, refunds, leased_at, ended_at, holder, ended, end_reason
FROM messages
WHERE id IN (SELECT value FROM json_each(:ids))

-- name: end_turn
UPDATE queues SET ring_end = :ring_end, clock_at = :now WHERE id = :queue_id

-- name: move_in_ring
UPDATE ring SET place = ? WHERE queue_id = ? AND grp = ?

-- name: leave_ring
DELETE FROM ring
WHERE queue_id = :queue_id
    AND grp IN (SELECT value FROM json_each(:groups))
    AND NOT EXISTS (
        SELECT 1 FROM messages WHERE messages.queue_id = ring.queue_id AND messages.grp = ring.grp AND state = 0
    )

-- The fence: which of these messages are still leased, and by which delivery.
-- name: leased
SELECT id, receive_count
FROM messages
WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 2 AND visible_at > :now

-- name: extend
UPDATE messages SET visible_at = :now + :lease_seconds, lease_seconds = :lease_seconds
WHERE id IN (SELECT value FROM json_each(:ids))

-- A release that does not count as an attempt is no failure.
-- name: release
UPDATE messages SET
    state = 1,
    visible_at = :until,
    refunds = refunds + :refund,
    first_failed_at = CASE :refund WHEN 1 THEN first_failed_at ELSE COALESCE(first_failed_at, :now) END,
    last_failed_at = CASE :refund WHEN 1 THEN last_failed_at ELSE :now END,
    unsuccessful = unsuccessful + 1,
    ended = CASE :refund WHEN 1 THEN 'given_back' ELSE 'failed' END,
    ended_at = :now,
    end_reason = :reason,
    tries = json_insert(
        CASE
            WHEN json_array_length(COALESCE(tries, '[]')) < 10 THEN COALESCE(tries, '[]')
            ELSE json_remove(tries, '$[0]')
        END,
        '$[#]',
        json_array(
            leased_at, :now, holder, CASE :refund WHEN 1 THEN 'given_back' ELSE 'failed' END, substr(:reason, 1, 200)
        )
    )
WHERE id IN (SELECT value FROM json_each(:ids))

-- name: last_days
SELECT id, attributes, enqueued_at, receive_count - refunds, first_failed_at, last_failed_at, holder, tries
FROM messages
WHERE id IN (SELECT value FROM json_each(:ids))
ORDER BY id

-- name: bury
UPDATE messages SET
    queue_id = :queue_id,
    state = 1,
    visible_at = :now,
    enqueued_at = :now,
    refunds = receive_count,
    first_failed_at = NULL,
    last_failed_at = NULL,
    leased_at = NULL,
    ended = NULL,
    ended_at = NULL,
    end_reason = NULL,
    tries = NULL,
    unsuccessful = 0,
    age_from = NULL,
    attributes = :attributes
WHERE id = :id

-- A lease that already ended keeps its end, as in `wake`.
-- name: held_by
SELECT id FROM messages WHERE state = 2 AND holder = :holder AND state <> 0

-- name: release_dead
UPDATE messages SET
    state = 1,
    visible_at = MIN(visible_at, :now),
    first_failed_at = COALESCE(first_failed_at, MIN(visible_at, :now)),
    last_failed_at = MIN(visible_at, :now),
    unsuccessful = unsuccessful + 1,
    ended = 'expired',
    ended_at = MIN(visible_at, :now),
    tries = json_insert(
        CASE
            WHEN json_array_length(COALESCE(tries, '[]')) < 10 THEN COALESCE(tries, '[]')
            ELSE json_remove(tries, '$[0]')
        END,
        '$[#]',
        json_array(leased_at, MIN(visible_at, :now), holder, 'expired', NULL)
    )
WHERE id IN (SELECT value FROM json_each(:ids))

-- One statement, and therefore one snapshot. The unary pluses keep SQLite from using the indexes of ready messages and
-- of resets, which it would have to sort; if none is ready, it need not scan past all the others.
-- name: stats
SELECT
    ready.messages,
    waiting.leased,
    waiting.messages - waiting.leased,
    CASE WHEN ready.messages > 0 THEN
        (SELECT enqueued_at FROM messages WHERE queue_id = :queue_id AND +state = 0 ORDER BY enqueued_at LIMIT 1)
    END,
    (SELECT enqueued_at FROM messages WHERE queue_id = :queue_id ORDER BY enqueued_at LIMIT 1),
    (SELECT enqueued_at FROM messages WHERE queue_id = :queue_id AND +age_from IS NULL ORDER BY enqueued_at LIMIT 1),
    (SELECT age_from FROM messages WHERE queue_id = :queue_id AND age_from IS NOT NULL ORDER BY age_from LIMIT 1)
FROM
    (SELECT COUNT(*) AS messages FROM messages WHERE queue_id = :queue_id AND state = 0) AS ready,
    (
        SELECT COUNT(*) AS messages, COALESCE(SUM(state = 2), 0) AS leased
        FROM messages
        WHERE queue_id = :queue_id AND state <> 0
    ) AS waiting

-- name: any_message
SELECT EXISTS (SELECT 1 FROM messages WHERE queue_id = :queue_id)

-- name: browse
SELECT id, body, enqueued_at, attributes, grp
FROM messages
WHERE queue_id = :queue_id AND id > :after
ORDER BY id
LIMIT :messages_max

-- In the order of the index `messages_ready`. Each page begins where the one before ended: SQLite would use only the
-- first column of (grp, id) > (:key, :id) and read all earlier messages of the group, so this is a merge of two parts.
-- name: peek_waiting
SELECT id, body, enqueued_at, attributes, grp, state, receive_count, refunds, visible_at, leased_at, holder, tries
FROM messages
WHERE queue_id = :queue_id AND state = 0 AND grp = :key AND id > :id
UNION ALL
SELECT id, body, enqueued_at, attributes, grp, state, receive_count, refunds, visible_at, leased_at, holder, tries
FROM messages
WHERE queue_id = :queue_id AND state = 0 AND grp > :key
ORDER BY grp, id
LIMIT :messages_max

-- In the order of the index `messages_waiting`, as above. It has the states side by side: where many messages of the
-- other state come first, their entries in the index are read, but not their rows. The unary plus keeps SQLite from
-- sorting all messages of one time.
-- name: peek_unready
SELECT id, body, enqueued_at, attributes, grp, state, receive_count, refunds, visible_at, leased_at, holder, tries
FROM messages
WHERE queue_id = :queue_id AND state <> 0 AND state = :state AND visible_at = :key AND id > :id
UNION ALL
SELECT id, body, enqueued_at, attributes, grp, state, receive_count, refunds, visible_at, leased_at, holder, tries
FROM messages
WHERE queue_id = :queue_id AND state <> 0 AND +state = :state AND visible_at > :key
ORDER BY visible_at, state, id
LIMIT :messages_max

-- name: find
SELECT id, body, enqueued_at, attributes, grp, state, receive_count, refunds, visible_at, leased_at, holder, tries
FROM messages
WHERE id = :id AND queue_id = :queue_id

-- name: purge
DELETE FROM messages WHERE queue_id = :queue_id

-- name: purge_ring
DELETE FROM ring WHERE queue_id = :queue_id
