-- The door: who owns a worker, what harmed us, and what is kept secret.

-- Owners of workers and leases.


-- Tasks that harmed us.


-- Secrets.


-- Bounds.

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
