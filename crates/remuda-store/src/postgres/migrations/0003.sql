-- The door: who owns a worker, what harmed us, and what is kept secret.

-- Owners of workers and leases.

-- Who holds these tasks, or, when nobody does, who had them last. To be asked after the tasks were locked.
CREATE FUNCTION remuda.owners_1(tasks uuid[]) RETURNS TABLE (task_of uuid, owner_of uuid)
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off AS $$
BEGIN
    RETURN QUERY SELECT u.id, coalesce(l.owner, a.owner) FROM unnest(tasks) AS u(id)
        JOIN remuda.task t ON t.id = u.id
        LEFT JOIN remuda.lease l ON l.task = u.id
        LEFT JOIN remuda.attempt a ON a.task = u.id AND a.n = t.attempt
        WHERE l.owner IS NOT NULL OR a.owner IS NOT NULL;
END
$$;


-- Which key registered a worker. Without a key: a process of the installation drives it. A worker without a row is from
-- before.
CREATE TABLE remuda.registration (
    worker text PRIMARY KEY,
    key uuid
);
CREATE INDEX registration_key ON remuda.registration (key) WHERE key IS NOT NULL;

-- Owners from before keys were part of them, and the key that each is known by since.
CREATE TABLE remuda.former_owner (
    owner uuid PRIMARY KEY,
    key uuid,
    since timestamptz NOT NULL
);
INSERT INTO remuda.former_owner (owner, since)
    SELECT o.owner, now() FROM (SELECT owner FROM remuda.worker UNION SELECT owner FROM remuda.lease) o;


-- Tasks that harmed us.
-- One row for each time that our own work on a task's graph brought a process down or to a standstill.
CREATE TABLE remuda.harm (
    task uuid NOT NULL,
    at   timestamptz NOT NULL,
    harm text NOT NULL,
    PRIMARY KEY (task, at)
);


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
-- installations without a secret key. Until `settled`, servers of an earlier release may go on writing secrets in plain
-- text, and every server that starts seals what it finds.
CREATE TABLE remuda.sealed_installation (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    cluster_key bytea NOT NULL,
    since timestamptz NOT NULL DEFAULT now(),
    settled boolean NOT NULL DEFAULT false
);


-- Bounds.

-- Who brought a description of nodes, how long it is, and when it was last brought or used. The processes of the
-- installation have the key of all zeros.
CREATE TABLE remuda.object_info_use (
    key uuid NOT NULL,
    hash bytea NOT NULL,
    bytes bigint NOT NULL,
    at timestamptz NOT NULL,
    PRIMARY KEY (key, hash)
);
CREATE INDEX object_info_use_hash ON remuda.object_info_use (hash);
-- How many documents a tenant has, and how many bytes they are. Kept by a trigger, so that whoever writes a document keeps it.
CREATE TABLE remuda.document_total (
    tenant text PRIMARY KEY,
    count bigint NOT NULL,
    bytes bigint NOT NULL
);
INSERT INTO remuda.document_total (tenant, count, bytes)
    SELECT tenant, count(*), sum(octet_length(bytes)) FROM remuda.document GROUP BY tenant;
CREATE FUNCTION remuda.count_document() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO remuda.document_total AS total (tenant, count, bytes)
            VALUES (NEW.tenant, 1, octet_length(NEW.bytes))
            ON CONFLICT (tenant) DO UPDATE SET count = total.count + 1, bytes = total.bytes + excluded.bytes;
    ELSIF TG_OP = 'UPDATE' THEN
        UPDATE remuda.document_total SET bytes = bytes + octet_length(NEW.bytes) - octet_length(OLD.bytes)
            WHERE tenant = NEW.tenant;
    ELSE
        UPDATE remuda.document_total SET count = count - 1, bytes = bytes - octet_length(OLD.bytes)
            WHERE tenant = OLD.tenant;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER document_counted AFTER INSERT OR UPDATE OF bytes OR DELETE ON remuda.document
    FOR EACH ROW EXECUTE FUNCTION remuda.count_document();
-- In the order in which this release locks: the release before writes the document first.
CREATE FUNCTION remuda.lock_documents() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM remuda.document_total WHERE tenant = NEW.tenant FOR UPDATE;
    RETURN NEW;
END
$$;
CREATE TRIGGER document_locked BEFORE INSERT ON remuda.document
    FOR EACH ROW EXECUTE FUNCTION remuda.lock_documents();
