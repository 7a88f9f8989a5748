CREATE TABLE penstock_ledger_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT penstock_ledger_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE pipelines (
	id VARCHAR(512) NOT NULL, 
	next_seq BIGINT NOT NULL, 
	schema_id INTEGER NOT NULL, 
	source_schema TEXT, source_options TEXT, added_columns TEXT, transform TEXT, merge TEXT, 
	PRIMARY KEY (id)
);
CREATE TABLE table_schemas (
	pipeline VARCHAR(512) NOT NULL, 
	schema_id INTEGER NOT NULL, 
	table_schema TEXT NOT NULL, 
	PRIMARY KEY (pipeline, schema_id)
);
CREATE TABLE attempts (
	id VARCHAR(64) NOT NULL, 
	pipeline VARCHAR(512) NOT NULL, 
	state VARCHAR(64) NOT NULL, 
	worker TEXT NOT NULL, 
	started_at DOUBLE NOT NULL, 
	ended_at DOUBLE, 
	lease_until DOUBLE NOT NULL, 
	heartbeat_seq BIGINT NOT NULL, 
	outcome VARCHAR(64), 
	reason TEXT, 
	PRIMARY KEY (id)
);
CREATE INDEX ix_attempts_state ON attempts (pipeline, state, id);
CREATE TABLE objects (
	pipeline VARCHAR(512) NOT NULL, 
	object_id BLOB NOT NULL, 
	bucket TEXT NOT NULL, 
	"key" BLOB NOT NULL, 
	uri TEXT NOT NULL, 
	uri_digest BLOB NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	version_id TEXT, 
	etag TEXT, 
	sequencer TEXT, 
	state VARCHAR(64) NOT NULL, 
	attempt_id VARCHAR(64), 
	charged INTEGER NOT NULL, 
	refunds INTEGER NOT NULL, 
	unattributed_failures INTEGER NOT NULL, 
	batch_seq BIGINT, 
	rows BIGINT, 
	lines_quarantined BIGINT, 
	reason TEXT, 
	carrier_message_id TEXT, 
	carrier_enqueued_at DOUBLE, 
	carrier_replay_id TEXT, 
	first_seen_at DOUBLE NOT NULL, 
	ended_at DOUBLE, 
	dead_at DOUBLE, missed_at DOUBLE, sought_at DOUBLE, unknown_fields TEXT, 
	PRIMARY KEY (pipeline, object_id)
);
CREATE INDEX ix_objects_state ON objects (state, pipeline, object_id);
CREATE INDEX ix_objects_attempt ON objects (attempt_id);
CREATE INDEX ix_objects_uri ON objects (uri_digest, pipeline);
CREATE TABLE object_attempts (
	pipeline VARCHAR(512) NOT NULL, 
	object_id BLOB NOT NULL, 
	attempt_id VARCHAR(64) NOT NULL, 
	replay_id TEXT, 
	outcome VARCHAR(64), 
	reason TEXT, 
	PRIMARY KEY (pipeline, object_id, attempt_id)
)
 WITHOUT ROWID

;
CREATE TABLE batches (
	pipeline VARCHAR(512) NOT NULL, 
	seq BIGINT NOT NULL, 
	attempt_id VARCHAR(64) NOT NULL, 
	schema_id INTEGER NOT NULL, 
	manifest TEXT NOT NULL, 
	quarantine_manifest TEXT NOT NULL, 
	objects BIGINT NOT NULL, 
	rows BIGINT NOT NULL, 
	lines_quarantined BIGINT NOT NULL, 
	bytes BIGINT NOT NULL, 
	committed_at DOUBLE NOT NULL, 
	stage_seconds TEXT NOT NULL, spark_ui_url TEXT, transform TEXT, replaces TEXT, replaced_objects BIGINT, replaced_rows BIGINT, grown_objects BIGINT, appended_rows BIGINT, merge TEXT, tombstones TEXT, 
	PRIMARY KEY (pipeline, seq), 
	CONSTRAINT uq_batches_attempt UNIQUE (attempt_id)
);
CREATE TABLE works (
	work_id BLOB NOT NULL, 
	handler VARCHAR(256) NOT NULL, 
	"key" TEXT NOT NULL, 
	state VARCHAR(64) NOT NULL, 
	attempt_id VARCHAR(64) NOT NULL, 
	worker TEXT NOT NULL, 
	started_at DOUBLE NOT NULL, 
	lease_until DOUBLE NOT NULL, 
	heartbeat_seq BIGINT NOT NULL, 
	ended_at DOUBLE, 
	attempts INTEGER NOT NULL, 
	outcome TEXT, 
	first_seen_at DOUBLE NOT NULL, 
	last_attempt_id VARCHAR(64), 
	last_worker TEXT, 
	last_started_at DOUBLE, 
	last_ended_at DOUBLE, 
	last_outcome VARCHAR(64), 
	last_reason TEXT, app VARCHAR(256), queue TEXT, retention_seconds DOUBLE, expires_at DOUBLE, 
	PRIMARY KEY (work_id)
);
CREATE UNIQUE INDEX ix_works_attempt ON works (attempt_id);
CREATE INDEX ix_works_state ON works (state, handler, work_id);
CREATE INDEX ix_works_ended ON works (ended_at);
CREATE TABLE tellings (
	pipeline VARCHAR(512) NOT NULL, 
	told_seq BIGINT NOT NULL, 
	PRIMARY KEY (pipeline)
);
CREATE TABLE archives (
	id VARCHAR(64) NOT NULL, 
	pipeline VARCHAR(512) NOT NULL, 
	uri TEXT, 
	objects BIGINT NOT NULL, 
	bytes BIGINT NOT NULL, 
	source TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	PRIMARY KEY (id)
);
CREATE INDEX ix_archives_pipeline ON archives (pipeline, id);
CREATE TABLE archived_objects (
	pipeline VARCHAR(512) NOT NULL, 
	object_id BLOB NOT NULL, 
	uri_digest BLOB NOT NULL, 
	archive_id VARCHAR(64) NOT NULL, batch_seq BIGINT, rows BIGINT, 
	PRIMARY KEY (pipeline, object_id)
)
 WITHOUT ROWID

;
CREATE INDEX ix_archived_objects_uri ON archived_objects (uri_digest, pipeline);
CREATE TABLE progress (
	pipeline VARCHAR(512) NOT NULL, 
	task VARCHAR(64) NOT NULL, 
	done_seq BIGINT NOT NULL, 
	PRIMARY KEY (pipeline, task)
);
CREATE TABLE reconciliations (
	pipeline VARCHAR(512) NOT NULL, 
	as_of DOUBLE NOT NULL, 
	finished_at DOUBLE NOT NULL, 
	source TEXT NOT NULL, 
	listed BIGINT NOT NULL, 
	missing BIGINT NOT NULL, 
	sent BIGINT NOT NULL, 
	seconds DOUBLE NOT NULL, 
	PRIMARY KEY (pipeline)
);
CREATE TABLE replays (
	replay_id VARCHAR(64) NOT NULL, 
	letter_queue TEXT NOT NULL, 
	letter_id TEXT NOT NULL, 
	queue TEXT NOT NULL, 
	count INTEGER NOT NULL, 
	due_at DOUBLE NOT NULL, 
	intended_at DOUBLE NOT NULL, 
	sent_at DOUBLE, 
	PRIMARY KEY (replay_id)
);
CREATE INDEX ix_replays_intended ON replays (intended_at);
CREATE TABLE audit (
	id VARCHAR(64) NOT NULL, 
	action VARCHAR(64) NOT NULL, 
	queue TEXT NOT NULL, 
	who TEXT NOT NULL, 
	details TEXT NOT NULL, 
	messages BIGINT NOT NULL, 
	outcome VARCHAR(64), 
	began_at DOUBLE NOT NULL, 
	ended_at DOUBLE, 
	PRIMARY KEY (id)
);
CREATE TABLE owners (
	owner_id BLOB NOT NULL, 
	kind VARCHAR(64) NOT NULL, 
	name VARCHAR(512) NOT NULL, 
	app VARCHAR(256) NOT NULL, 
	queue TEXT NOT NULL, 
	named INTEGER NOT NULL, 
	plain INTEGER NOT NULL, 
	first_seen_at DOUBLE NOT NULL, 
	last_seen_at DOUBLE NOT NULL, 
	PRIMARY KEY (owner_id)
);
CREATE INDEX ix_owners_name ON owners (kind, name);
CREATE INDEX ix_works_expires ON works (expires_at) WHERE expires_at IS NOT NULL;
CREATE VIEW penstock_objects AS SELECT o.pipeline, o.bucket, CASE WHEN o.bucket = 'file' THEN SUBSTR(o.uri, 8) ELSE SUBSTR(o.uri, LENGTH(o.bucket) + 7) END AS object_key, o.uri, o.version_id, o.state AS status, o.size_bytes, o.charged - o.refunds AS attempts, o."rows" AS rows_read, o.lines_quarantined, o.batch_seq, strftime('%Y-%m-%d %H:%M:%f', o.first_seen_at, 'unixepoch') AS created_at, strftime('%Y-%m-%d %H:%M:%f', COALESCE(o.ended_at, (SELECT MAX(COALESCE(a.ended_at, a.started_at)) FROM object_attempts oa JOIN attempts a ON a.id = oa.attempt_id WHERE oa.object_id = o.object_id AND oa.pipeline = o.pipeline), o.first_seen_at), 'unixepoch') AS updated_at, t.worker, o.reason FROM objects o LEFT JOIN attempts t ON t.id = o.attempt_id;
CREATE VIEW penstock_keys AS SELECT w.app, w.queue, w.handler, w."key" AS work_key, w.state AS status, w.attempts, strftime('%Y-%m-%d %H:%M:%f', w.first_seen_at, 'unixepoch') AS created_at, strftime('%Y-%m-%d %H:%M:%f', COALESCE(w.ended_at, w.started_at), 'unixepoch') AS updated_at, strftime('%Y-%m-%d %H:%M:%f', w.expires_at, 'unixepoch') AS expires_at, w.worker, w.outcome, w.last_reason AS reason FROM works w;
CREATE TABLE quarantined (
	pipeline VARCHAR(512) NOT NULL, 
	object_id BLOB NOT NULL, 
	attempt_id VARCHAR(64) NOT NULL, 
	bucket TEXT NOT NULL, 
	"key" BLOB NOT NULL, 
	uri TEXT NOT NULL, 
	uri_digest BLOB NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	version_id TEXT, 
	etag TEXT, 
	place VARCHAR(64) NOT NULL, 
	rows BIGINT NOT NULL, 
	lines_quarantined BIGINT NOT NULL, 
	reason TEXT, 
	warns INTEGER NOT NULL, 
	state VARCHAR(64) NOT NULL, 
	replay_id BLOB NOT NULL, 
	recorded_at DOUBLE NOT NULL, 
	ended_at DOUBLE, replaced_seq BIGINT, 
	PRIMARY KEY (pipeline, object_id)
);
CREATE INDEX ix_quarantined_state ON quarantined (pipeline, state, warns);
CREATE INDEX ix_quarantined_attempt ON quarantined (attempt_id);
CREATE INDEX ix_quarantined_uri ON quarantined (uri_digest, pipeline);
CREATE INDEX ix_quarantined_replay ON quarantined (replay_id);
CREATE TABLE table_commits (
	pipeline VARCHAR(512) NOT NULL, 
	table_digest BLOB NOT NULL, 
	version BIGINT NOT NULL, 
	tag TEXT NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	after_seq BIGINT NOT NULL, 
	seq BIGINT NOT NULL, 
	engine TEXT, 
	operation TEXT, 
	committed_at DOUBLE, 
	lost_from BIGINT, 
	lost_to BIGINT, replacing BIGINT, rewritten_in TEXT, 
	PRIMARY KEY (pipeline, table_digest, version)
);
CREATE TABLE reopenings (
	pipeline VARCHAR(512) NOT NULL, 
	object_id BLOB NOT NULL, 
	uri TEXT NOT NULL, 
	uri_digest BLOB NOT NULL, 
	state VARCHAR(64) NOT NULL, 
	attempt_id VARCHAR(64) NOT NULL, 
	batch_seq BIGINT NOT NULL, 
	rows BIGINT, 
	lines_quarantined BIGINT, 
	unknown_fields TEXT, 
	ended_at DOUBLE, 
	reopened_at DOUBLE NOT NULL, 
	read_attempt_id VARCHAR(64), 
	PRIMARY KEY (pipeline, object_id)
);
CREATE INDEX ix_reopenings_state ON reopenings (pipeline, state, object_id);
CREATE INDEX ix_reopenings_uri ON reopenings (uri_digest, pipeline);
CREATE INDEX ix_reopenings_attempt ON reopenings (attempt_id);
CREATE INDEX ix_reopenings_read ON reopenings (read_attempt_id);
CREATE TABLE beginnings (
	pipeline VARCHAR(512) NOT NULL, 
	uri_digest BLOB NOT NULL, 
	attempt_id VARCHAR(64) NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	digest TEXT NOT NULL, 
	reading VARCHAR(64) NOT NULL, 
	rows BIGINT NOT NULL, 
	lines_quarantined BIGINT NOT NULL, 
	object_bytes BIGINT NOT NULL, 
	version_id TEXT, 
	etag TEXT, 
	PRIMARY KEY (pipeline, uri_digest)
)
 WITHOUT ROWID

