-- Version 2: what became of the hand-over before, the age of the oldest message, pauses, and clocks that go back.
-- Columns are added and not moved, so that even a large file is changed in a moment.

-- The current or last hand-over; `holder` belongs to it. What it was is known from this version on.
ALTER TABLE messages ADD COLUMN leased_at REAL;
ALTER TABLE messages ADD COLUMN lease_seconds REAL;  -- as last given or extended
ALTER TABLE messages ADD COLUMN ended TEXT;          -- an AttemptEnd; NULL while leased
ALTER TABLE messages ADD COLUMN ended_at REAL;
ALTER TABLE messages ADD COLUMN end_reason TEXT;

ALTER TABLE messages ADD COLUMN unsuccessful INTEGER NOT NULL DEFAULT 0;  -- hand-overs in this queue that ended unacked
ALTER TABLE messages ADD COLUMN age_from REAL;  -- the last reset of its age; NULL: enqueued_at

ALTER TABLE queues ADD COLUMN paused INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN clock_at REAL NOT NULL DEFAULT 0;  -- when a lease was last given or extended here

-- Each hand-over has ended without an ack but the one under way. A dead letter began anew, with all before refunded.
UPDATE messages SET
    unsuccessful = receive_count - (state = 2)
        - CASE WHEN instr(attributes, '"penstock-death"') > 0 THEN refunds ELSE 0 END
WHERE receive_count > 0;

DROP INDEX messages_by_age;
CREATE INDEX messages_by_age ON messages (queue_id, enqueued_at, age_from);
CREATE INDEX messages_reset ON messages (queue_id, age_from) WHERE age_from IS NOT NULL;
