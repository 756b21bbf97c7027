-- What is to be done outside when a task has ended. While `due_at` is set somebody has to do it, from then on: nobody before.
-- Over and without an error it is done.
CREATE TABLE remuda.errand (
    task uuid NOT NULL,
    n integer NOT NULL,
    tenant text NOT NULL,
    errand text NOT NULL,
    upon text NOT NULL,
    since timestamptz,
    due_at timestamptz,
    attempts integer NOT NULL DEFAULT 0,
    over_at timestamptz,
    error text,
    PRIMARY KEY (task, n)
);
CREATE INDEX errand_due ON remuda.errand (tenant, due_at) WHERE due_at IS NOT NULL;

-- How many a task has: by it, tasks without any cost nothing.
ALTER TABLE remuda.task ADD COLUMN errands integer NOT NULL DEFAULT 0;

-- Triggers, because servers of an earlier release end and forget tasks, too. What falls due with which end is what `Upon::due`
-- says.
CREATE FUNCTION remuda.errands_of_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE remuda.errand SET since = NEW.finished_at, due_at = NEW.finished_at
        WHERE task = NEW.id AND (upon = 'ended' OR (upon = 'completed' AND NEW.status = 'completed'));
    RETURN NULL;
END
$$;
CREATE TRIGGER errands_of_ended AFTER UPDATE OF finished_at ON remuda.task FOR EACH ROW
    WHEN (NEW.errands > 0 AND NEW.finished_at IS NOT NULL AND OLD.finished_at IS NULL)
    EXECUTE FUNCTION remuda.errands_of_ended();
CREATE FUNCTION remuda.errands_of_forgotten() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM remuda.errand WHERE task = OLD.id;
    RETURN NULL;
END
$$;
CREATE TRIGGER errands_of_forgotten AFTER DELETE ON remuda.task FOR EACH ROW
    WHEN (OLD.errands > 0) EXECUTE FUNCTION remuda.errands_of_forgotten();
