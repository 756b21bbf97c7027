-- The door: who owns a worker, what harmed us, and what is kept secret.

-- Owners of workers and leases.

-- Which key registered a worker. Without a key: a process of the installation drives it. A worker without a row is from
-- before.
CREATE TABLE registration (
    worker TEXT PRIMARY KEY,
    key    BLOB
) STRICT, WITHOUT ROWID;
CREATE INDEX registration_key ON registration (key) WHERE key IS NOT NULL;

-- Owners from before keys were part of them, and the key that each is known by since.
CREATE TABLE former_owner (
    owner BLOB PRIMARY KEY,
    key   BLOB,
    since INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO former_owner (owner, since) SELECT owner, CAST(unixepoch('subsec') * 1000000 AS INTEGER)
    FROM (SELECT owner FROM worker UNION SELECT owner FROM lease);


-- Tasks that harmed us.
-- One row for each time that our own work on a task's graph brought a process down or to a standstill.
CREATE TABLE harm (
    task BLOB NOT NULL,
    at   INTEGER NOT NULL,
    harm TEXT NOT NULL,
    PRIMARY KEY (task, at)
) STRICT, WITHOUT ROWID;


-- Secrets.

-- What is secret of a task's `extra_data`, sealed. It goes with the end of the task, in the same transaction, whichever
-- way the task ends and whichever release ends it.
CREATE TABLE secret (
    no     INTEGER PRIMARY KEY,
    sealed BLOB NOT NULL
) STRICT;

CREATE TRIGGER secret_of_ended AFTER UPDATE OF finished_at ON task
    WHEN NEW.finished_at IS NOT NULL AND OLD.finished_at IS NULL
BEGIN
    DELETE FROM secret WHERE no = NEW.no;
END;

-- The key between servers, sealed. From now on the one in `installation` is for earlier releases only. Tasks beyond
-- `sealed_to` may have been written by an earlier release, with their secrets in plain text.
CREATE TABLE sealed_installation (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    cluster_key BLOB NOT NULL,
    sealed_to   INTEGER
) STRICT;


-- Bounds.

-- Who brought a description of nodes, how long it is, and when it was last brought or used. The processes of the
-- installation have the key of all zeros.
CREATE TABLE object_info_use (
    key   BLOB NOT NULL,
    hash  BLOB NOT NULL,
    bytes INTEGER NOT NULL,
    at    INTEGER NOT NULL,
    PRIMARY KEY (key, hash)
) STRICT, WITHOUT ROWID;
CREATE INDEX object_info_use_hash ON object_info_use (hash);
-- How many documents a tenant has, and how many bytes they are. Kept by triggers, so that whoever writes a document keeps it.
CREATE TABLE document_total (
    tenant TEXT PRIMARY KEY,
    count  INTEGER NOT NULL,
    bytes  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO document_total (tenant, count, bytes)
    SELECT tenant, count(*), sum(length(bytes)) FROM document GROUP BY tenant;
CREATE TRIGGER document_added AFTER INSERT ON document BEGIN
    INSERT INTO document_total (tenant, count, bytes) VALUES (NEW.tenant, 1, length(NEW.bytes))
        ON CONFLICT (tenant) DO UPDATE SET count = count + 1, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER document_changed AFTER UPDATE OF bytes ON document BEGIN
    UPDATE document_total SET bytes = bytes + length(NEW.bytes) - length(OLD.bytes) WHERE tenant = NEW.tenant;
END;
CREATE TRIGGER document_removed AFTER DELETE ON document BEGIN
    UPDATE document_total SET count = count - 1, bytes = bytes - length(OLD.bytes) WHERE tenant = OLD.tenant;
    DELETE FROM document_total WHERE tenant = OLD.tenant AND count <= 0;
END;
