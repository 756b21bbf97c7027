-- The first schema. Later migrations only add; what a program must know is in remuda.schema.min_binary.

CREATE TABLE remuda.installation (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    id uuid NOT NULL,
    cluster_key text NOT NULL,
    created_at timestamptz NOT NULL
);

CREATE TABLE remuda.task (
    id uuid PRIMARY KEY,
    tenant text NOT NULL,
    workflow_id text,
    priority smallint NOT NULL,
    status text NOT NULL,
    reason text,
    lane text NOT NULL,
    affinity bigint,
    shape bigint NOT NULL,
    cost_ms bigint NOT NULL,
    rank bigint NOT NULL,
    created_at timestamptz NOT NULL,
    run_at timestamptz NOT NULL,
    deadline timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    timeout_s integer NOT NULL,
    max_retries integer NOT NULL,
    failures integer NOT NULL,
    losses integer NOT NULL,
    attempt integer NOT NULL,
    fence bigint NOT NULL,
    version bigint NOT NULL,
    cancel_at timestamptz,
    worker text,
    avoid_worker text,
    avoid_until timestamptz,
    error json,
    result json,
    metadata json,
    retry_of uuid
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.5);

-- The queue: a claim reads its head, whatever waits behind it.
CREATE INDEX task_queue ON remuda.task (lane, rank, (9 - priority), id) WHERE reason = 'queued';
CREATE INDEX task_wait ON remuda.task (run_at) WHERE reason IN ('scheduled', 'retry');
CREATE INDEX task_deadline ON remuda.task (deadline) WHERE status = 'pending' AND deadline IS NOT NULL;
CREATE INDEX task_finished ON remuda.task (finished_at, id) WHERE finished_at IS NOT NULL;
-- Lists: one range for each state, merged.
CREATE INDEX task_list ON remuda.task (tenant, status, id);
CREATE INDEX task_workflow ON remuda.task (workflow_id, tenant, status, id) WHERE workflow_id IS NOT NULL;

-- Written once, never changed.
CREATE TABLE remuda.task_input (
    task uuid PRIMARY KEY,
    workflow text NOT NULL,
    placements json NOT NULL,
    requires json NOT NULL
);

-- As small as the fleet. No index on what beats change, so that they stay within their page.
CREATE TABLE remuda.lease (
    task uuid PRIMARY KEY,
    fence bigint NOT NULL,
    attempt integer NOT NULL,
    owner uuid NOT NULL,
    worker text NOT NULL,
    prompt_id uuid NOT NULL,
    until timestamptz NOT NULL,
    phase text NOT NULL,
    progress double precision NOT NULL,
    rendering_since timestamptz,
    gateway text,
    wanted boolean NOT NULL,
    started_at timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE INDEX lease_worker ON remuda.lease (worker);
CREATE INDEX lease_ahead ON remuda.lease (task) WHERE phase = 'ahead';

-- Attempts that are over. The one under way is the lease.
CREATE TABLE remuda.attempt (
    task uuid NOT NULL,
    n integer NOT NULL,
    owner uuid NOT NULL,
    worker text NOT NULL,
    prompt_id uuid NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL,
    outcome text NOT NULL,
    failure json,
    gpu_ms bigint,
    PRIMARY KEY (task, n)
);

CREATE TABLE remuda.task_event (
    task uuid NOT NULL,
    n bigint NOT NULL,
    at timestamptz NOT NULL,
    kind text NOT NULL,
    data json NOT NULL,
    PRIMARY KEY (task, n)
);

CREATE TABLE remuda.idem (
    tenant text NOT NULL,
    key text NOT NULL,
    request bytea NOT NULL,
    task uuid NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX idem_task ON remuda.idem (task);

-- How much of its share each tenant used up, for each priority.
CREATE TABLE remuda.tenant (
    tenant text PRIMARY KEY,
    vfinish bigint[] NOT NULL,
    weight bigint NOT NULL
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

CREATE TABLE remuda.lane (
    id text PRIMARY KEY,
    requires json NOT NULL,
    v bigint NOT NULL
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

CREATE TABLE remuda.shape (
    shape bigint PRIMARY KEY,
    cost_ms bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE remuda.worker (
    id text PRIMARY KEY,
    endpoint text NOT NULL,
    name text,
    labels text[] NOT NULL,
    report json NOT NULL,
    owner uuid NOT NULL,
    fence bigint NOT NULL,
    held boolean NOT NULL,
    until timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    last_active_at timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

CREATE TABLE remuda.object_info (
    hash bytea PRIMARY KEY,
    content text NOT NULL,
    saved_at timestamptz NOT NULL
);

CREATE TABLE remuda.leader (
    what text PRIMARY KEY,
    holder uuid NOT NULL,
    fence bigint NOT NULL,
    until timestamptz NOT NULL
);

CREATE TABLE remuda.api_key (
    id uuid PRIMARY KEY,
    name text NOT NULL,
    tenant text NOT NULL,
    scopes text[] NOT NULL,
    hash bytea NOT NULL,
    created_at timestamptz NOT NULL,
    revoked_at timestamptz
);

CREATE TABLE remuda.asset (
    tenant text NOT NULL,
    sha256 bytea NOT NULL,
    filename text NOT NULL,
    key text NOT NULL,
    mime text NOT NULL,
    size bigint NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, sha256, filename)
);
CREATE INDEX asset_name ON remuda.asset (tenant, filename, created_at);

-- Counts of tasks, in shards that concurrent transactions do not share; the sum over all shards is the truth.
CREATE TABLE remuda.counter (
    tenant text NOT NULL,
    shard smallint NOT NULL,
    pending bigint NOT NULL,
    running bigint NOT NULL,
    completed bigint NOT NULL,
    failed bigint NOT NULL,
    cancelled bigint NOT NULL,
    PRIMARY KEY (tenant, shard)
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Ended tasks whose earlier or discarded attempts may have left files.
CREATE TABLE remuda.sweep (
    task uuid PRIMARY KEY,
    at timestamptz NOT NULL
);

-- What most transactions read and write, in one call each: statements of a function are planned once for each
-- connection, those that a client sends are planned every time. They decide nothing. A changed one gets another number,
-- so that older programs find theirs.

-- Locks tasks that end, in the order in which they are named; then the first tasks of lanes, those that nobody else has locked.
CREATE FUNCTION remuda.load_1(ends uuid[], lanes text[], depth bigint) RETURNS SETOF remuda.task
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off
    SET enable_bitmapscan = off AS $$
BEGIN
    IF cardinality(ends) > 0 THEN
        RETURN QUERY SELECT t.* FROM unnest(ends) AS u(id) JOIN remuda.task t ON t.id = u.id FOR UPDATE OF t;
    END IF;
    IF cardinality(lanes) > 0 THEN
        RETURN QUERY SELECT c.* FROM unnest(lanes) AS u(lane) CROSS JOIN LATERAL (
            SELECT t.* FROM remuda.task t WHERE t.lane = u.lane AND t.reason = 'queued'
            ORDER BY t.rank, 9 - t.priority, t.id LIMIT depth FOR UPDATE SKIP LOCKED
        ) c;
    END IF;
END
$$;

-- Writes rows, and reads the inputs of tasks that are claimed with it.
CREATE FUNCTION remuda.save_1(
    new_id uuid[], new_tenant text[], new_workflow_id text[], new_priority smallint[], new_status text[], new_reason
    text[], new_lane text[], new_affinity bigint[], new_shape bigint[], new_cost_ms bigint[], new_rank bigint[],
    new_created_at timestamptz[], new_run_at timestamptz[], new_deadline timestamptz[], new_started_at
    timestamptz[], new_timeout_s integer[], new_max_retries integer[], new_attempt integer[], new_fence bigint[],
    new_version bigint[], new_worker text[], new_metadata json[], new_retry_of uuid[], input_workflow text[],
    input_placements json[], input_requires json[], now_id uuid[], now_status text[], now_reason text[], now_lane
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
) RETURNS TABLE (input_of uuid, workflow_of text, placements_of json, requires_of json)
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off AS $$
BEGIN
    IF cardinality(new_id) > 0 THEN
        INSERT INTO remuda.task (
            id, tenant, workflow_id, priority, status, reason, lane, affinity, shape, cost_ms, rank, created_at,
            run_at, deadline, started_at, timeout_s, max_retries, attempt, fence, version, worker, metadata,
            retry_of, failures, losses
        ) SELECT u.*, 0, 0 FROM unnest(
            new_id, new_tenant, new_workflow_id, new_priority, new_status, new_reason, new_lane, new_affinity,
            new_shape, new_cost_ms, new_rank, new_created_at, new_run_at, new_deadline, new_started_at,
            new_timeout_s, new_max_retries, new_attempt, new_fence, new_version, new_worker, new_metadata,
            new_retry_of
        ) AS u;
        INSERT INTO remuda.task_input (task, workflow, placements, requires)
            SELECT * FROM unnest(new_id, input_workflow, input_placements, input_requires);
    END IF;
    IF cardinality(now_id) > 0 THEN
        UPDATE remuda.task AS t SET
            status = u.status, reason = u.reason, lane = u.lane, run_at = u.run_at, started_at = u.started_at,
            finished_at = u.finished_at, failures = u.failures, losses = u.losses, attempt = u.attempt, fence =
            u.fence, version = u.version, cancel_at = u.cancel_at, worker = u.worker, avoid_worker = u.avoid_worker,
            avoid_until = u.avoid_until, error = u.error, result = u.result
        FROM unnest(
            now_id, now_status, now_reason, now_lane, now_run_at, now_started_at, now_finished_at, now_failures,
            now_losses, now_attempt, now_fence, now_version, now_cancel_at, now_worker, now_avoid_worker,
            now_avoid_until, now_error, now_result
        ) AS u(
            id, status, reason, lane, run_at, started_at, finished_at, failures, losses, attempt, fence, version,
            cancel_at, worker, avoid_worker, avoid_until, error, result
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
    IF cardinality(count_tenant) > 0 THEN
        INSERT INTO remuda.counter AS c (tenant, shard, pending, running, completed, failed, cancelled)
            SELECT u.tenant, count_shard, u.pending, u.running, u.completed, u.failed, u.cancelled
            FROM unnest(count_tenant, count_pending, count_running, count_completed, count_failed, count_cancelled)
                AS u(tenant, pending, running, completed, failed, cancelled)
            ON CONFLICT (tenant, shard) DO UPDATE SET pending = c.pending + excluded.pending,
                running = c.running + excluded.running, completed = c.completed + excluded.completed,
                failed = c.failed + excluded.failed, cancelled = c.cancelled + excluded.cancelled;
    END IF;
    IF cardinality(read_task) > 0 THEN
        RETURN QUERY SELECT i.task, i.workflow, i.placements, i.requires FROM remuda.task_input i
            WHERE i.task = ANY(read_task);
    END IF;
END
$$;
