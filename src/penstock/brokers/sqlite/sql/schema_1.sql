-- The embedded queue, version 1. This step is never changed: what is new is a step of its own.
PRAGMA application_id = 1347638347;  -- "PSTK" in the file's header: another program's database is told apart

-- Names this very file for ever: ids and receipts begin with it.
CREATE TABLE store (id TEXT NOT NULL);
INSERT INTO store (id) VALUES ('q' || lower(hex(randomblob(8))));

CREATE TABLE queues (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    dead_letter_queue TEXT NOT NULL,
    receives_max INTEGER,
    retention_seconds REAL NOT NULL,
    ring_end INTEGER NOT NULL DEFAULT 0,  -- the last place given in the ring
    dropped INTEGER NOT NULL DEFAULT 0    -- dead letters deleted at the end of their retention
);

-- A row is one message for its whole life, dead-lettering included; AUTOINCREMENT never gives an id twice.
-- state: 0 ready, 1 delayed, 2 leased. A ready message has no use for visible_at: it counts in the other two.
-- grp: '' for none, else ':' and the group, so that one comparison serves both.
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue_id INTEGER NOT NULL REFERENCES queues (id),
    state INTEGER NOT NULL,
    visible_at REAL NOT NULL,
    enqueued_at REAL NOT NULL,
    receive_count INTEGER NOT NULL DEFAULT 0,  -- never goes down: the fence
    refunds INTEGER NOT NULL DEFAULT 0,        -- attempts = receive_count - refunds
    grp TEXT NOT NULL,
    holder TEXT NOT NULL DEFAULT '',           -- who has or had the lease
    first_failed_at REAL,
    last_failed_at REAL,
    attributes TEXT,                           -- JSON; NULL for none
    body BLOB NOT NULL
);

CREATE INDEX messages_ready ON messages (queue_id, grp, id) WHERE state = 0;
CREATE INDEX messages_waiting ON messages (queue_id, visible_at, state) WHERE state <> 0;
CREATE INDEX messages_by_age ON messages (queue_id, enqueued_at);
CREATE INDEX messages_by_queue ON messages (queue_id, id);

-- The groups that have ready messages; the one with the lowest place is served next and then goes to the end.
CREATE TABLE ring (
    queue_id INTEGER NOT NULL,
    grp TEXT NOT NULL,
    place INTEGER NOT NULL,
    PRIMARY KEY (queue_id, grp)
) WITHOUT ROWID;

CREATE INDEX ring_by_place ON ring (queue_id, place);

CREATE TABLE deduplications (
    queue_id INTEGER NOT NULL,
    deduplication_id TEXT NOT NULL,
    until REAL NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (queue_id, deduplication_id)
) WITHOUT ROWID;

CREATE INDEX deduplications_by_until ON deduplications (until);
