-- What is to be done outside when a task has ended. While `due_at` is set somebody has to do it, from then on: nobody before.
-- Over and without an error it is done.
CREATE TABLE errand (
    task     BLOB NOT NULL,
    n        INTEGER NOT NULL,
    tenant   TEXT NOT NULL,
    errand   TEXT NOT NULL,
    upon     TEXT NOT NULL,
    since    INTEGER,
    due_at   INTEGER,
    attempts INTEGER NOT NULL DEFAULT 0,
    over_at  INTEGER,
    error    TEXT,
    PRIMARY KEY (task, n)
) STRICT, WITHOUT ROWID;
CREATE INDEX errand_due ON errand (tenant, due_at) WHERE due_at IS NOT NULL;

-- Triggers, because an earlier release ends and forgets tasks, too. What falls due with which end is what `Upon::due` says.
CREATE TRIGGER errands_of_ended AFTER UPDATE OF finished_at ON task
    WHEN NEW.finished_at IS NOT NULL AND OLD.finished_at IS NULL
BEGIN
    UPDATE errand SET since = NEW.finished_at, due_at = NEW.finished_at
        WHERE task = NEW.id AND (upon = 'ended' OR (upon = 'completed' AND NEW.status = 'completed'));
END;
CREATE TRIGGER errands_of_forgotten AFTER DELETE ON task BEGIN
    DELETE FROM errand WHERE task = OLD.id;
END;
