-- Long texts in pieces. One that is as long as a request may be takes a fifth of a second to write, and everybody else would
-- wait for it; a piece takes a few milliseconds, and others are served between two of them.

-- `id` is the number of the text, and in its last 16 bits the place of the piece. What came beside a graph is in the upper
-- half of the places of the same text. Pieces of a text that no row names are left over, and are removed.
CREATE TABLE piece (
    id    INTEGER PRIMARY KEY,
    piece TEXT NOT NULL
) STRICT;

-- With a `text`, `workflow` is empty and `extra` is null, and both are found in pieces.
ALTER TABLE input RENAME TO input_row;
ALTER TABLE input_row ADD COLUMN text INTEGER;
CREATE INDEX input_text ON input_row (text) WHERE text IS NOT NULL;
-- Set by whoever seals what is secret before it is written. What an earlier release wrote is found by the index.
ALTER TABLE input_row ADD COLUMN sealed INTEGER;
CREATE INDEX input_unsealed ON input_row (no) WHERE sealed IS NULL AND extra IS NOT NULL;

ALTER TABLE result RENAME TO result_row;
ALTER TABLE result_row ADD COLUMN text INTEGER;
CREATE INDEX result_text ON result_row (text) WHERE text IS NOT NULL;

-- Under the names of before, both are what they were: for earlier releases.
CREATE VIEW input (no, lane, placements, workflow, extra) AS SELECT no, lane, placements,
    CASE WHEN text IS NULL THEN workflow ELSE (SELECT group_concat(piece, '') FROM
        (SELECT piece FROM piece WHERE id >= text << 16 AND id < (text << 16) + 32768 ORDER BY id)) END,
    CASE WHEN text IS NULL OR extra IS NOT NULL THEN extra ELSE (SELECT group_concat(piece, '') FROM
        (SELECT piece FROM piece WHERE id >= (text << 16) + 32768 AND id < (text + 1) << 16 ORDER BY id)) END
    FROM input_row;
CREATE TRIGGER input_insert INSTEAD OF INSERT ON input BEGIN
    INSERT INTO input_row (no, lane, placements, workflow, extra)
        VALUES (NEW.no, NEW.lane, NEW.placements, NEW.workflow, NEW.extra);
END;
CREATE TRIGGER input_update INSTEAD OF UPDATE OF extra ON input BEGIN
    UPDATE input_row SET extra = NEW.extra, sealed = NULL WHERE no = OLD.no;
    DELETE FROM piece WHERE id >= ((SELECT text FROM input_row WHERE no = OLD.no) << 16) + 32768
        AND id < ((SELECT text FROM input_row WHERE no = OLD.no) + 1) << 16;
END;
CREATE TRIGGER input_delete INSTEAD OF DELETE ON input BEGIN
    DELETE FROM piece WHERE id >= (SELECT text FROM input_row WHERE no = OLD.no) << 16
        AND id < ((SELECT text FROM input_row WHERE no = OLD.no) + 1) << 16;
    DELETE FROM input_row WHERE no = OLD.no;
END;

CREATE VIEW result (no, result) AS SELECT no,
    CASE WHEN text IS NULL THEN result ELSE (SELECT group_concat(piece, '') FROM
        (SELECT piece FROM piece WHERE id >= text << 16 AND id < (text + 1) << 16 ORDER BY id)) END
    FROM result_row;
CREATE TRIGGER result_insert INSTEAD OF INSERT ON result BEGIN
    INSERT INTO result_row (no, result) VALUES (NEW.no, NEW.result);
END;
CREATE TRIGGER result_delete INSTEAD OF DELETE ON result BEGIN
    DELETE FROM piece WHERE id >= (SELECT text FROM result_row WHERE no = OLD.no) << 16
        AND id < ((SELECT text FROM result_row WHERE no = OLD.no) + 1) << 16;
    DELETE FROM result_row WHERE no = OLD.no;
END;
