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
    wanted boolean NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE INDEX lease_worker ON remuda.lease (worker);
CREATE INDEX lease_ahead ON remuda.lease (task) WHERE phase = 'ahead';

CREATE TABLE remuda.attempt (
    task uuid NOT NULL,
    n integer NOT NULL,
    owner uuid NOT NULL,
    worker text NOT NULL,
    prompt_id uuid NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at timestamptz,
    outcome text,
    failure json,
    gpu_ms bigint,
    PRIMARY KEY (task, n)
) WITH (fillfactor = 85);

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
