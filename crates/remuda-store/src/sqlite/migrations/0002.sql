-- Tasks that came through another door, and what clients of that door keep with us.

ALTER TABLE task ADD COLUMN dialect TEXT;
ALTER TABLE task ADD COLUMN external_id TEXT;
ALTER TABLE task ADD COLUMN client TEXT;
-- An ended task that its client does not want to see any more. The record stays.
ALTER TABLE task ADD COLUMN hidden_at INTEGER;

-- Lists of a dialect: one range for each state, merged. What a list filters by is in the index, so that skipping and
-- counting read no rows; for the same reason an index has what its own condition is about, although that is always null.
CREATE INDEX task_origin ON task (tenant, dialect, status, id, client, workflow_id, hidden_at)
    WHERE dialect IS NOT NULL AND hidden_at IS NULL;
CREATE INDEX task_origin_ended ON task (tenant, dialect, status, finished_at, id, client, workflow_id, hidden_at)
    WHERE dialect IS NOT NULL AND hidden_at IS NULL AND finished_at IS NOT NULL;
CREATE INDEX task_origin_open ON task (tenant, dialect, client, finished_at)
    WHERE dialect IS NOT NULL AND finished_at IS NULL;

-- What came beside the graph.
ALTER TABLE input ADD COLUMN extra TEXT;

CREATE TABLE document (
    tenant      TEXT NOT NULL,
    space       TEXT NOT NULL,
    path        TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    modified_at INTEGER NOT NULL,
    bytes       BLOB NOT NULL,
    PRIMARY KEY (tenant, space, path)
) STRICT;
