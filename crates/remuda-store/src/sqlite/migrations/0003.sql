-- The door: who owns a worker, what harmed us, and what is kept secret.

-- Owners of workers and leases.


-- Tasks that harmed us.
-- One row for each time that our own work on a task's graph brought a process down or to a standstill.
CREATE TABLE harm (
    task BLOB NOT NULL,
    at   INTEGER NOT NULL,
    harm TEXT NOT NULL,
    PRIMARY KEY (task, at)
) STRICT, WITHOUT ROWID;


-- Secrets.


-- Bounds.
