-- The door: who owns a worker, what harmed us, and what is kept secret.

-- Owners of workers and leases.


-- Tasks that harmed us.


-- Secrets.


-- Bounds.
