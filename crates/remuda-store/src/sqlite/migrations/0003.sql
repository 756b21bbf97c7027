-- The door: who owns a worker, what harmed us, and what is kept secret.

-- Owners of workers and leases.


-- Tasks that harmed us.


-- Secrets.


-- Bounds.

-- How many documents a tenant has, and how many bytes they are. Kept by triggers, so that whoever writes a document keeps it.
CREATE TABLE document_total (
    tenant TEXT PRIMARY KEY,
    count  INTEGER NOT NULL,
    bytes  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO document_total (tenant, count, bytes)
    SELECT tenant, count(*), sum(length(bytes)) FROM document GROUP BY tenant;
CREATE TRIGGER document_added AFTER INSERT ON document BEGIN
    INSERT INTO document_total (tenant, count, bytes) VALUES (NEW.tenant, 1, length(NEW.bytes))
        ON CONFLICT (tenant) DO UPDATE SET count = count + 1, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER document_changed AFTER UPDATE OF bytes ON document BEGIN
    UPDATE document_total SET bytes = bytes + length(NEW.bytes) - length(OLD.bytes) WHERE tenant = NEW.tenant;
END;
CREATE TRIGGER document_removed AFTER DELETE ON document BEGIN
    UPDATE document_total SET count = count - 1, bytes = bytes - length(OLD.bytes) WHERE tenant = OLD.tenant;
    DELETE FROM document_total WHERE tenant = OLD.tenant AND count <= 0;
END;
