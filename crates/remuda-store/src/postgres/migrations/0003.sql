-- The door: who owns a worker, what harmed us, and what is kept secret.

-- Owners of workers and leases.


-- Tasks that harmed us.


-- Secrets.

-- What is secret of a task's `extra_data`, sealed. It goes with the end of the task, in the same transaction, whichever
-- way the task ends and whichever release ends it.
CREATE TABLE remuda.secret (
    task uuid PRIMARY KEY,
    sealed bytea NOT NULL
);

CREATE FUNCTION remuda.secret_of_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM remuda.secret WHERE task = NEW.id;
    RETURN NULL;
END
$$;

CREATE TRIGGER secret_of_ended AFTER UPDATE OF finished_at ON remuda.task FOR EACH ROW
    WHEN (NEW.finished_at IS NOT NULL AND OLD.finished_at IS NULL) EXECUTE FUNCTION remuda.secret_of_ended();

-- The key between servers, sealed. From now on the one in `installation` is for earlier releases, and for
-- installations without a secret key.
CREATE TABLE remuda.sealed_installation (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    cluster_key bytea NOT NULL
);


-- Bounds.
