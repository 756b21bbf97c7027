-- What happened to tasks, in the order of the commits: one row for each commit and tenant, with all its entries packed.
CREATE TABLE feed (
    row INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    at INTEGER NOT NULL,
    entries BLOB NOT NULL
) STRICT;
CREATE INDEX feed_tenant ON feed (tenant, row);

-- From where on it can be followed. Rows up to `removed` were removed; a new epoch begins when a release that does not write
-- the feed has changed tasks.
CREATE TABLE feed_state (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    epoch INTEGER NOT NULL,
    removed INTEGER NOT NULL,
    broken INTEGER NOT NULL
) STRICT;
INSERT INTO feed_state (one, epoch, removed, broken) VALUES (1, 1, 0, 0);

-- What a tenant has in the store: the bytes of its tasks, as each has them in its row, and of its assets, each content once.
-- A task that an earlier release takes in or ends has none.
ALTER TABLE task ADD COLUMN stored INTEGER NOT NULL DEFAULT 0;
CREATE TABLE stored (
    tenant TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO stored (tenant, bytes) SELECT tenant, sum(size) FROM
    (SELECT tenant, sha256, max(size) AS size FROM asset GROUP BY tenant, sha256) GROUP BY tenant;
-- Triggers, because an earlier release takes in assets and forgets tasks, too.
CREATE TRIGGER task_stored_no_more AFTER DELETE ON task WHEN OLD.stored <> 0 BEGIN
    INSERT INTO stored (tenant, bytes) VALUES (OLD.tenant, -OLD.stored)
        ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER asset_stored AFTER INSERT ON asset WHEN NOT EXISTS (SELECT 1 FROM asset
    WHERE tenant = NEW.tenant AND sha256 = NEW.sha256 AND filename <> NEW.filename)
BEGIN
    INSERT INTO stored (tenant, bytes) VALUES (NEW.tenant, NEW.size)
        ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes;
END;

-- Under its name of before, `event` is what it was, for earlier releases: whoever writes by it does not write the feed.
ALTER TABLE event RENAME TO event_row;
CREATE VIEW event (no, n, at, kind, data) AS SELECT no, n, at, kind, data FROM event_row;
CREATE TRIGGER event_insert INSTEAD OF INSERT ON event BEGIN
    INSERT INTO event_row (no, n, at, kind, data) VALUES (NEW.no, NEW.n, NEW.at, NEW.kind, NEW.data);
    UPDATE feed_state SET broken = 1 WHERE broken = 0;
END;
CREATE TRIGGER event_delete INSTEAD OF DELETE ON event BEGIN
    DELETE FROM event_row WHERE no = OLD.no AND n = OLD.n;
END;
DROP TRIGGER input_insert;
CREATE TRIGGER input_insert INSTEAD OF INSERT ON input BEGIN
    INSERT INTO input_row (no, lane, placements, workflow, extra)
        VALUES (NEW.no, NEW.lane, NEW.placements, NEW.workflow, NEW.extra);
    UPDATE feed_state SET broken = 1 WHERE broken = 0;
END;
