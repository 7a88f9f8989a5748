-- Version 3: what the attempts came to before the last one, for whoever reads the death.

ALTER TABLE messages ADD COLUMN tries TEXT;  -- JSON: [started at, ended at, worker, end, reason] each, oldest first
