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


-- Tasks that harmed us.


-- Secrets.


-- Bounds.
