-- The door: who owns a worker, what harmed us, and what is kept secret.

-- Owners of workers and leases.


-- Tasks that harmed us.


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

-- The key between servers, sealed. From now on the one in `installation` is for earlier releases only.
CREATE TABLE sealed_installation (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    cluster_key BLOB NOT NULL
) STRICT;


-- Bounds.
