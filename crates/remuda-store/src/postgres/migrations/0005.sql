-- What happened to tasks, in the order of their transactions: one row for each transaction and tenant, with all its entries
-- packed. A reader looks only below the oldest transaction that has not ended, so that nothing can come before what it has
-- seen.
CREATE TABLE remuda.feed (
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    seq bigint GENERATED ALWAYS AS IDENTITY,
    tenant text NOT NULL,
    at timestamptz NOT NULL,
    entries bytea NOT NULL,
    PRIMARY KEY (xid, seq)
);
CREATE INDEX feed_tenant ON remuda.feed (tenant, xid, seq);

-- From where on it can be followed. What is not after this place was removed; a new epoch begins when the database was restored
-- into a server whose transactions have lower numbers.
CREATE TABLE remuda.feed_state (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch bigint NOT NULL,
    removed_xid xid8 NOT NULL,
    removed_seq bigint NOT NULL
);
INSERT INTO remuda.feed_state (epoch, removed_xid, removed_seq) VALUES (1, '0', 0);

-- What a tenant has in the store: the bytes of its tasks, as each has them in its row, and of its assets, each content once.
-- A task that an earlier release takes in or ends has none.
ALTER TABLE remuda.task ADD COLUMN stored bigint NOT NULL DEFAULT 0;
ALTER TABLE remuda.counter ADD COLUMN stored bigint NOT NULL DEFAULT 0;
INSERT INTO remuda.counter (tenant, shard, pending, running, completed, failed, cancelled, stored)
    SELECT tenant, -2, 0, 0, 0, 0, 0, sum(size) FROM
        (SELECT tenant, sha256, max(size) AS size FROM remuda.asset GROUP BY tenant, sha256) AS a GROUP BY tenant;

-- Triggers, because servers of an earlier release take in assets and forget tasks, too. Each has a shard of its own.
CREATE FUNCTION remuda.task_stored_no_more() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO remuda.counter AS c (tenant, shard, pending, running, completed, failed, cancelled, stored)
        SELECT tenant, -1, 0, 0, 0, 0, 0, -sum(stored) FROM gone WHERE stored <> 0 GROUP BY tenant ORDER BY tenant
        ON CONFLICT (tenant, shard) DO UPDATE SET stored = c.stored + excluded.stored;
    RETURN NULL;
END
$$;
CREATE TRIGGER task_stored_no_more AFTER DELETE ON remuda.task REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION remuda.task_stored_no_more();
-- Whoever brings the same content at the same moment waits for the row of the counter, and then sees the other.
CREATE FUNCTION remuda.asset_stored() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO remuda.counter AS c (tenant, shard, pending, running, completed, failed, cancelled, stored)
        VALUES (NEW.tenant, -2, 0, 0, 0, 0, 0, 0) ON CONFLICT (tenant, shard) DO UPDATE SET stored = c.stored;
    IF NOT EXISTS (SELECT 1 FROM remuda.asset
        WHERE tenant = NEW.tenant AND sha256 = NEW.sha256 AND filename <> NEW.filename)
    THEN
        UPDATE remuda.counter SET stored = stored + NEW.size WHERE tenant = NEW.tenant AND shard = -2;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER asset_stored AFTER INSERT ON remuda.asset FOR EACH ROW EXECUTE FUNCTION remuda.asset_stored();

-- As save_2, with the feed and with what tasks count as.
CREATE FUNCTION remuda.save_3(
    new_id uuid[], new_tenant text[], new_workflow_id text[], new_priority smallint[], new_status text[], new_reason
    text[], new_lane text[], new_affinity bigint[], new_shape bigint[], new_cost_ms bigint[], new_rank bigint[],
    new_created_at timestamptz[], new_run_at timestamptz[], new_deadline timestamptz[], new_started_at
    timestamptz[], new_timeout_s integer[], new_max_retries integer[], new_attempt integer[], new_fence bigint[],
    new_version bigint[], new_worker text[], new_metadata json[], new_retry_of uuid[], new_dialect text[],
    new_external_id text[], new_client text[], new_stored bigint[], input_workflow text[], input_placements json[], input_requires json[],
    input_extra text[], now_id uuid[], now_status text[], now_reason text[], now_lane
    text[], now_run_at timestamptz[], now_started_at timestamptz[], now_finished_at timestamptz[], now_failures
    integer[], now_losses integer[], now_attempt integer[], now_fence bigint[], now_version bigint[], now_cancel_at
    timestamptz[], now_worker text[], now_avoid_worker text[], now_avoid_until timestamptz[], now_error json[],
    now_result json[], now_stored bigint[], over_task uuid[], over_ended_at timestamptz[], over_outcome text[], over_failure json[],
    over_gpu_ms bigint[], lease_task uuid[], lease_fence bigint[], lease_attempt integer[], lease_owner uuid[],
    lease_worker text[], lease_prompt_id uuid[], lease_until timestamptz[], lease_phase text[], lease_gateway
    text[], lease_started_at timestamptz[], event_task uuid[], event_n bigint[], event_at timestamptz[], event_kind
    text[], event_data json[], count_shard smallint, count_tenant text[], count_pending bigint[], count_running
    bigint[], count_completed bigint[], count_failed bigint[], count_cancelled bigint[], count_stored bigint[],
    read_task uuid[],
    feed_tenant text[], feed_at timestamptz, feed_entries bytea[]
) RETURNS TABLE (input_of uuid, workflow_of text, placements_of json, requires_of json, extra_of text)
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off AS $$
BEGIN
    IF cardinality(new_id) > 0 THEN
        INSERT INTO remuda.task (
            id, tenant, workflow_id, priority, status, reason, lane, affinity, shape, cost_ms, rank, created_at,
            run_at, deadline, started_at, timeout_s, max_retries, attempt, fence, version, worker, metadata,
            retry_of, dialect, external_id, client, stored, failures, losses
        ) SELECT u.*, 0, 0 FROM unnest(
            new_id, new_tenant, new_workflow_id, new_priority, new_status, new_reason, new_lane, new_affinity,
            new_shape, new_cost_ms, new_rank, new_created_at, new_run_at, new_deadline, new_started_at,
            new_timeout_s, new_max_retries, new_attempt, new_fence, new_version, new_worker, new_metadata,
            new_retry_of, new_dialect, new_external_id, new_client, new_stored
        ) AS u;
        INSERT INTO remuda.task_input (task, workflow, placements, requires, extra)
            SELECT * FROM unnest(new_id, input_workflow, input_placements, input_requires, input_extra);
    END IF;
    IF cardinality(now_id) > 0 THEN
        UPDATE remuda.task AS t SET
            status = u.status, reason = u.reason, lane = u.lane, run_at = u.run_at, started_at = u.started_at,
            finished_at = u.finished_at, failures = u.failures, losses = u.losses, attempt = u.attempt, fence =
            u.fence, version = u.version, cancel_at = u.cancel_at, worker = u.worker, avoid_worker = u.avoid_worker,
            avoid_until = u.avoid_until, error = u.error, result = u.result, stored = t.stored + u.stored
        FROM unnest(
            now_id, now_status, now_reason, now_lane, now_run_at, now_started_at, now_finished_at, now_failures,
            now_losses, now_attempt, now_fence, now_version, now_cancel_at, now_worker, now_avoid_worker,
            now_avoid_until, now_error, now_result, now_stored
        ) AS u(
            id, status, reason, lane, run_at, started_at, finished_at, failures, losses, attempt, fence, version,
            cancel_at, worker, avoid_worker, avoid_until, error, result, stored
        ) WHERE t.id = u.id;
    END IF;
    IF cardinality(over_task) > 0 THEN
        WITH over AS (
            DELETE FROM remuda.lease AS l
            USING unnest(over_task, over_ended_at, over_outcome, over_failure, over_gpu_ms)
                AS u(task, ended_at, outcome, failure, gpu_ms)
            WHERE l.task = u.task
            RETURNING l.task, l.attempt, l.owner, l.worker, l.prompt_id, l.started_at, u.ended_at, u.outcome,
                u.failure, u.gpu_ms
        )
        INSERT INTO remuda.attempt (
            task, n, owner, worker, prompt_id, started_at, ended_at, outcome, failure, gpu_ms
        ) SELECT * FROM over;
    END IF;
    IF cardinality(lease_task) > 0 THEN
        INSERT INTO remuda.lease (
            task, fence, attempt, owner, worker, prompt_id, until, phase, gateway, started_at, progress, wanted
        ) SELECT u.*, 0, false FROM unnest(
            lease_task, lease_fence, lease_attempt, lease_owner, lease_worker, lease_prompt_id, lease_until,
            lease_phase, lease_gateway, lease_started_at
        ) AS u;
    END IF;
    IF cardinality(event_task) > 0 THEN
        INSERT INTO remuda.task_event (task, n, at, kind, data)
            SELECT * FROM unnest(event_task, event_n, event_at, event_kind, event_data);
    END IF;
    IF cardinality(feed_tenant) > 0 THEN
        INSERT INTO remuda.feed (tenant, at, entries)
            SELECT u.tenant, feed_at, u.entries FROM unnest(feed_tenant, feed_entries) AS u(tenant, entries);
    END IF;
    IF cardinality(count_tenant) > 0 THEN
        INSERT INTO remuda.counter AS c (tenant, shard, pending, running, completed, failed, cancelled, stored)
            SELECT u.tenant, count_shard, u.pending, u.running, u.completed, u.failed, u.cancelled, u.stored
            FROM unnest(count_tenant, count_pending, count_running, count_completed, count_failed, count_cancelled,
                count_stored) AS u(tenant, pending, running, completed, failed, cancelled, stored)
            ON CONFLICT (tenant, shard) DO UPDATE SET pending = c.pending + excluded.pending,
                running = c.running + excluded.running, completed = c.completed + excluded.completed,
                failed = c.failed + excluded.failed, cancelled = c.cancelled + excluded.cancelled,
                stored = c.stored + excluded.stored;
    END IF;
    IF cardinality(read_task) > 0 THEN
        RETURN QUERY SELECT i.task, i.workflow, i.placements, i.requires, i.extra FROM remuda.task_input i
            WHERE i.task = ANY(read_task);
    END IF;
END
$$;

-- For the release before, which knows nothing of the feed: it is made of the events.
CREATE OR REPLACE FUNCTION remuda.save_2(
    new_id uuid[], new_tenant text[], new_workflow_id text[], new_priority smallint[], new_status text[], new_reason
    text[], new_lane text[], new_affinity bigint[], new_shape bigint[], new_cost_ms bigint[], new_rank bigint[],
    new_created_at timestamptz[], new_run_at timestamptz[], new_deadline timestamptz[], new_started_at
    timestamptz[], new_timeout_s integer[], new_max_retries integer[], new_attempt integer[], new_fence bigint[],
    new_version bigint[], new_worker text[], new_metadata json[], new_retry_of uuid[], new_dialect text[],
    new_external_id text[], new_client text[], input_workflow text[], input_placements json[], input_requires json[],
    input_extra text[], now_id uuid[], now_status text[], now_reason text[], now_lane
    text[], now_run_at timestamptz[], now_started_at timestamptz[], now_finished_at timestamptz[], now_failures
    integer[], now_losses integer[], now_attempt integer[], now_fence bigint[], now_version bigint[], now_cancel_at
    timestamptz[], now_worker text[], now_avoid_worker text[], now_avoid_until timestamptz[], now_error json[],
    now_result json[], over_task uuid[], over_ended_at timestamptz[], over_outcome text[], over_failure json[],
    over_gpu_ms bigint[], lease_task uuid[], lease_fence bigint[], lease_attempt integer[], lease_owner uuid[],
    lease_worker text[], lease_prompt_id uuid[], lease_until timestamptz[], lease_phase text[], lease_gateway
    text[], lease_started_at timestamptz[], event_task uuid[], event_n bigint[], event_at timestamptz[], event_kind
    text[], event_data json[], count_shard smallint, count_tenant text[], count_pending bigint[], count_running
    bigint[], count_completed bigint[], count_failed bigint[], count_cancelled bigint[],
    read_task uuid[]
) RETURNS TABLE (input_of uuid, workflow_of text, placements_of json, requires_of json, extra_of text)
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off AS $$
DECLARE
    feed_tenant text[];
    feed_entries bytea[];
BEGIN
    SELECT array_agg(f.tenant), array_agg(f.entries) INTO feed_tenant, feed_entries FROM (
        SELECT coalesce(n.tenant, t.tenant) AS tenant, '\x01'::bytea || string_agg(uuid_send(e.task)
            || int8send(e.n) || int8send((extract(epoch FROM e.at) * 1000000)::bigint)
            || set_byte('\x00'::bytea, 0, array_position(ARRAY['submitted', 'claimed', 'adopted', 'returned',
                'retry_scheduled', 'lost', 'cancel_requested', 'completed', 'failed', 'cancelled'], e.kind)),
            ''::bytea ORDER BY e.place) AS entries
        FROM unnest(event_task, event_n, event_at, event_kind) WITH ORDINALITY AS e(task, n, at, kind, place)
        LEFT JOIN unnest(new_id, new_tenant) AS n(id, tenant) ON n.id = e.task
        LEFT JOIN remuda.task t ON t.id = e.task
        GROUP BY 1
    ) AS f;
    RETURN QUERY SELECT * FROM remuda.save_3(
        new_id, new_tenant, new_workflow_id, new_priority, new_status, new_reason, new_lane,
        new_affinity, new_shape, new_cost_ms, new_rank, new_created_at, new_run_at, new_deadline,
        new_started_at, new_timeout_s, new_max_retries, new_attempt, new_fence, new_version,
        new_worker, new_metadata, new_retry_of, new_dialect, new_external_id, new_client,
        array_fill(0::bigint, ARRAY[cardinality(new_id)]), input_workflow, input_placements, input_requires, input_extra, now_id, now_status,
        now_reason, now_lane, now_run_at, now_started_at, now_finished_at, now_failures, now_losses,
        now_attempt, now_fence, now_version, now_cancel_at, now_worker, now_avoid_worker,
        now_avoid_until, now_error, now_result,
        array_fill(0::bigint, ARRAY[cardinality(now_id)]), over_task, over_ended_at, over_outcome,
        over_failure, over_gpu_ms, lease_task, lease_fence, lease_attempt, lease_owner,
        lease_worker, lease_prompt_id, lease_until, lease_phase, lease_gateway, lease_started_at,
        event_task, event_n, event_at, event_kind, event_data, count_shard, count_tenant,
        count_pending, count_running, count_completed, count_failed, count_cancelled,
        array_fill(0::bigint, ARRAY[cardinality(count_tenant)]), read_task,
        coalesce(feed_tenant, '{}'), clock_timestamp(), coalesce(feed_entries, '{}')
    );
END
$$;
