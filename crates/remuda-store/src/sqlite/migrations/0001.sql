-- Times are microseconds since 1970. Ids and hashes are blobs. What is only ever read as a whole is JSON.
-- A task has a short number beside its id: everything else about it hangs on that.

CREATE TABLE installation (
    id          BLOB NOT NULL,
    cluster_key TEXT NOT NULL
) STRICT;

-- The rank `v` is the largest that was claimed from the lane.
CREATE TABLE lane (
    id       TEXT PRIMARY KEY,
    requires TEXT NOT NULL,
    v        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE tenant (
    tenant  TEXT PRIMARY KEY,
    weight  INTEGER NOT NULL,
    vfinish TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE shape (
    shape   INTEGER PRIMARY KEY,
    cost_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE count (
    tenant TEXT NOT NULL,
    status TEXT NOT NULL,
    n      INTEGER NOT NULL,
    PRIMARY KEY (tenant, status)
) STRICT, WITHOUT ROWID;

CREATE TABLE task (
    id           BLOB PRIMARY KEY,
    no           INTEGER NOT NULL,
    tenant       TEXT NOT NULL,
    workflow_id  TEXT,
    priority     INTEGER NOT NULL,
    status       TEXT NOT NULL,
    reason       TEXT,
    lane         TEXT NOT NULL,
    affinity     INTEGER,
    shape        INTEGER NOT NULL,
    cost_ms      INTEGER NOT NULL,
    rank         INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    run_at       INTEGER NOT NULL,
    deadline     INTEGER,
    started_at   INTEGER,
    finished_at  INTEGER,
    timeout_s    INTEGER NOT NULL,
    max_retries  INTEGER NOT NULL,
    failures     INTEGER NOT NULL,
    losses       INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    fence        INTEGER NOT NULL,
    version      INTEGER NOT NULL,
    cancel_at    INTEGER,
    worker       TEXT,
    avoid_worker TEXT,
    avoid_until  INTEGER,
    error        TEXT,
    metadata     TEXT,
    retry_of     BLOB
) STRICT, WITHOUT ROWID;

-- The queue. It has all that the choice of a task looks at.
CREATE INDEX task_queued ON task (lane, rank, priority DESC, id, affinity, avoid_worker, avoid_until, run_at)
    WHERE reason = 'queued';
CREATE INDEX task_later ON task (run_at) WHERE reason IN ('scheduled', 'retry');
CREATE INDEX task_deadline ON task (deadline) WHERE status = 'pending' AND deadline IS NOT NULL;
-- Lists. Running tasks are found by their leases, which are as few as there are workers.
CREATE INDEX task_pending ON task (tenant, id) WHERE status = 'pending';
CREATE INDEX task_ended ON task (tenant, status, id) WHERE finished_at IS NOT NULL;
CREATE INDEX task_pending_workflow ON task (tenant, workflow_id, id)
    WHERE status = 'pending' AND workflow_id IS NOT NULL;
CREATE INDEX task_ended_workflow ON task (tenant, workflow_id, status, id)
    WHERE finished_at IS NOT NULL AND workflow_id IS NOT NULL;
-- Retention.
CREATE INDEX task_finished ON task (finished_at) WHERE finished_at IS NOT NULL;

-- Written once. `lane` has the requirements that the task came with.
CREATE TABLE input (
    no         INTEGER PRIMARY KEY,
    lane       TEXT NOT NULL,
    placements TEXT,
    workflow   TEXT NOT NULL
) STRICT;

CREATE TABLE result (
    no     INTEGER PRIMARY KEY,
    result TEXT NOT NULL
) STRICT;

-- That a task came in is told by its own row: its first event is not written down again, unless it says more.
CREATE TABLE event (
    no   INTEGER NOT NULL,
    n    INTEGER NOT NULL,
    at   INTEGER NOT NULL,
    kind TEXT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (no, n)
) STRICT, WITHOUT ROWID;

-- A lease is also the record of the attempt under way.
CREATE TABLE lease (
    no              INTEGER PRIMARY KEY,
    task            BLOB NOT NULL,
    fence           INTEGER NOT NULL,
    attempt         INTEGER NOT NULL,
    owner           BLOB NOT NULL,
    worker          TEXT NOT NULL,
    prompt_id       BLOB NOT NULL,
    started_at      INTEGER NOT NULL,
    until           INTEGER NOT NULL,
    phase           TEXT NOT NULL,
    progress        REAL NOT NULL,
    rendering_since INTEGER,
    gateway         TEXT,
    wanted          INTEGER NOT NULL
) STRICT;

-- Attempts that ended.
CREATE TABLE attempt (
    no         INTEGER NOT NULL,
    n          INTEGER NOT NULL,
    owner      BLOB NOT NULL,
    worker     TEXT NOT NULL,
    prompt_id  BLOB NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER NOT NULL,
    outcome    TEXT NOT NULL,
    failure    TEXT,
    gpu_ms     INTEGER,
    PRIMARY KEY (no, n)
) STRICT, WITHOUT ROWID;

CREATE TABLE idem (
    tenant  TEXT NOT NULL,
    key     TEXT NOT NULL,
    request BLOB NOT NULL,
    task    BLOB NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idem_task ON idem (task);

-- Ended tasks whose earlier or discarded attempts may have left files.
CREATE TABLE sweep (
    no   INTEGER PRIMARY KEY,
    task BLOB NOT NULL
) STRICT;

CREATE TABLE worker (
    id             TEXT PRIMARY KEY,
    spec           TEXT NOT NULL,
    report         TEXT NOT NULL,
    owner          BLOB NOT NULL,
    fence          INTEGER NOT NULL,
    held           INTEGER NOT NULL,
    until          INTEGER NOT NULL,
    created_at     INTEGER NOT NULL,
    last_active_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE object_info (
    hash BLOB PRIMARY KEY,
    json TEXT NOT NULL
) STRICT;

CREATE TABLE leader (
    what   TEXT PRIMARY KEY,
    holder BLOB NOT NULL,
    fence  INTEGER NOT NULL,
    until  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE key (
    id         BLOB PRIMARY KEY,
    name       TEXT NOT NULL,
    tenant     TEXT NOT NULL,
    scopes     TEXT NOT NULL,
    hash       BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    revoked_at INTEGER
) STRICT;

CREATE TABLE asset (
    tenant     TEXT NOT NULL,
    sha256     BLOB NOT NULL,
    key        TEXT NOT NULL,
    filename   TEXT NOT NULL,
    mime       TEXT NOT NULL,
    size       INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, sha256, filename)
) STRICT, WITHOUT ROWID;
CREATE INDEX asset_name ON asset (tenant, filename, created_at DESC);
