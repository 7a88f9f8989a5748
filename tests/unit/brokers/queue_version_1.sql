-- A queue file as version 1 of the schema left it, with a message in every state. Time: FakeClock's start + 30 s.
-- The leased message's receipt: q4b162bb14171562c-3-1
PRAGMA application_id = 1347638347;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE deduplications (
    queue_id INTEGER NOT NULL,
    deduplication_id TEXT NOT NULL,
    until REAL NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (queue_id, deduplication_id)
) WITHOUT ROWID;
INSERT INTO "deduplications" VALUES(1,'once',1700000330.0,4);
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
INSERT INTO "messages" VALUES(1,1,1,1700000330.0,1700000000.0,4,1,':a','old-worker',1700000010.0,1700000030.0,'{"k": ["AP8="], "t": "text"}',X'6661696C6564207477696365');
INSERT INTO "messages" VALUES(2,2,1,1700000020.0,1700000020.0,2,2,'','old-worker',NULL,NULL,'{"penstock-death": "{\"reason\": \"bad\", \"attempts\": 2, \"last_failed_at\": 1700000020.0, \"worker\": \"old-worker\", \"queue\": \"q\", \"message_id\": \"q4b162bb14171562c-000000000002\", \"enqueued_at\": 1700000020.0, \"first_failed_at\": 1700000020.0, \"exception\": \"ValueError: x\", \"traceback\": null}"}',X'64656164');
INSERT INTO "messages" VALUES(3,1,2,1700000630.0,1700000030.0,1,0,':','old-worker',NULL,NULL,NULL,X'6C6561736564');
INSERT INTO "messages" VALUES(4,1,0,1700000030.0,1700000030.0,0,0,'','',NULL,NULL,NULL,X'7265616479');
INSERT INTO "messages" VALUES(5,1,1,1700000530.0,1700000030.0,0,0,'','',NULL,NULL,NULL,X'64656C61796564');
CREATE TABLE queues (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    dead_letter_queue TEXT NOT NULL,
    receives_max INTEGER,
    retention_seconds REAL NOT NULL,
    ring_end INTEGER NOT NULL DEFAULT 0,  -- the last place given in the ring
    dropped INTEGER NOT NULL DEFAULT 0    -- dead letters deleted at the end of their retention
);
INSERT INTO "queues" VALUES(1,'q','graves',5,1000000.0,15,0);
INSERT INTO "queues" VALUES(2,'graves','graves-dlq',NULL,1209600.0,0,0);
CREATE TABLE ring (
    queue_id INTEGER NOT NULL,
    grp TEXT NOT NULL,
    place INTEGER NOT NULL,
    PRIMARY KEY (queue_id, grp)
) WITHOUT ROWID;
INSERT INTO "ring" VALUES(1,'',15);
CREATE TABLE store (id TEXT NOT NULL);
INSERT INTO "store" VALUES('q4b162bb14171562c');
CREATE INDEX messages_ready ON messages (queue_id, grp, id) WHERE state = 0;
CREATE INDEX messages_waiting ON messages (queue_id, visible_at, state) WHERE state <> 0;
CREATE INDEX messages_by_age ON messages (queue_id, enqueued_at);
CREATE INDEX messages_by_queue ON messages (queue_id, id);
CREATE INDEX ring_by_place ON ring (queue_id, place);
CREATE INDEX deduplications_by_until ON deduplications (until);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('messages',5);
COMMIT;
