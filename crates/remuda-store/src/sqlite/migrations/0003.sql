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


-- Secrets.


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
