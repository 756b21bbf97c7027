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
