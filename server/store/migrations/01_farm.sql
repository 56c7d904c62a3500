-- moefarm's database: the only truth. Written by one thread of moefarmd, read by others through WAL snapshots.
-- Times: *_ms are milliseconds since 1970; us are microseconds of device time. Enums are text.
-- Migration 1; server/store/migration.h numbers them by PRAGMA user_version.

CREATE TABLE farm (                     -- one row
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    epoch       INTEGER NOT NULL,       -- of the last start, in ms since 1970 and above all before: part of every lease
    created_ms  INTEGER NOT NULL
) STRICT;

CREATE TABLE device_class (
    id          INTEGER PRIMARY KEY,
    gfx         TEXT NOT NULL,
    cu_num      INTEGER NOT NULL CHECK (cu_num > 0),
    UNIQUE (gfx, cu_num)
) STRICT;

CREATE TABLE device_model (             -- a SKU within a class; times are pooled within a model only
    id          INTEGER PRIMARY KEY,
    class       INTEGER NOT NULL REFERENCES device_class,
    name        TEXT NOT NULL,
    simulated   INTEGER NOT NULL CHECK (simulated IN (0, 1)),
    body        TEXT NOT NULL,          -- JSON of `described` (docs/protocol.md)
    UNIQUE (class, name)
) STRICT;

CREATE TABLE worker (
    id          INTEGER PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,
    instance    TEXT NOT NULL,
    model       INTEGER NOT NULL REFERENCES device_model,
    host        TEXT NOT NULL,
    pid         INTEGER NOT NULL,
    version     TEXT NOT NULL,
    revision    TEXT NOT NULL,
    families    TEXT NOT NULL,          -- JSON array
    state       TEXT NOT NULL CHECK (state IN ('idle', 'busy', 'draining', 'lost', 'gone')),
    unit        INTEGER,                -- running now
    step        TEXT NOT NULL DEFAULT '',
    joined_ms   INTEGER NOT NULL,
    seen_ms     INTEGER NOT NULL,
    busy        TEXT NOT NULL DEFAULT '{}', -- JSON: seconds by phase since it joined
    n_results   INTEGER NOT NULL DEFAULT 0,
    n_deaths    INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE shape (
    id          INTEGER PRIMARY KEY,
    row         TEXT NOT NULL UNIQUE,   -- the twelve canonical values
    layer_model TEXT NOT NULL,          -- the row without its token
    token       INTEGER NOT NULL
) STRICT;
CREATE INDEX shape_layer_model ON shape (layer_model, token);

CREATE TABLE batch (
    id          INTEGER PRIMARY KEY,
    name        TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('open', 'done', 'cancelled')),
    priority    INTEGER NOT NULL,
    options     TEXT NOT NULL,          -- JSON, as accepted, defaults filled in
    idempotency_key TEXT UNIQUE,
    body_hash   TEXT NOT NULL,          -- of the submission: the same key with another body is refused
    receipt     TEXT NOT NULL,          -- JSON answer of the submission, given again for the same key
    created_ms  INTEGER NOT NULL,
    ended_ms    INTEGER
) STRICT;

-- A task: one shape of a batch on one device class. waiting: no worker of the class has enumerated yet.
CREATE TABLE task (
    id          INTEGER PRIMARY KEY,
    batch       INTEGER NOT NULL REFERENCES batch,
    shape       INTEGER NOT NULL REFERENCES shape,
    class       INTEGER REFERENCES device_class,    -- NULL: the first class to come; only while it waits
    state       TEXT NOT NULL CHECK (state IN ('waiting', 'enumerating', 'probing', 'ranking', 'racing', 'done', 'failed', 'cancelled')),
    reason      TEXT NOT NULL DEFAULT '',   -- of failed, and what waiting waits for
    enumeration INTEGER REFERENCES enumeration,
    model       INTEGER REFERENCES device_model, -- pinned by the first probe: one model's times decide a task
    n_steps     INTEGER NOT NULL DEFAULT 0, -- steps to measure
    n_measured  INTEGER NOT NULL DEFAULT 0, -- steps with a final result
    ended_ms    INTEGER,
    UNIQUE (batch, shape, class),
    CHECK (class IS NOT NULL OR state IN ('waiting', 'cancelled'))
) STRICT;
CREATE INDEX task_enumeration ON task (enumeration);
CREATE INDEX task_state ON task (state, class);

CREATE TABLE kernel (                   -- interned once per revision
    id          INTEGER PRIMARY KEY,
    family      TEXT NOT NULL,
    revision    TEXT NOT NULL,
    name        TEXT NOT NULL,
    UNIQUE (family, revision, name)
) STRICT;

CREATE TABLE enumeration (              -- what a class offers for a shape at a revision
    id          INTEGER PRIMARY KEY,
    class       INTEGER NOT NULL REFERENCES device_class,
    shape       INTEGER NOT NULL REFERENCES shape,
    revision    TEXT NOT NULL,
    complete    INTEGER NOT NULL DEFAULT 0 CHECK (complete IN (0, 1)),
    UNIQUE (class, shape, revision)
) STRICT;

CREATE TABLE step (
    id          INTEGER PRIMARY KEY,
    enumeration INTEGER NOT NULL REFERENCES enumeration,
    kernel      INTEGER NOT NULL REFERENCES kernel,
    covers      TEXT NOT NULL,          -- "gather+gemm1+act"; "-" for a conversion
    block_m     INTEGER NOT NULL,       -- 0: any
    flops       REAL NOT NULL,
    bytes       REAL NOT NULL,
    body        TEXT NOT NULL,          -- JSON of mf_step_print
    UNIQUE (enumeration, kernel)
) STRICT;

CREATE TABLE rejection (                -- why a family offers no step, in words
    id          INTEGER PRIMARY KEY,
    enumeration INTEGER NOT NULL REFERENCES enumeration,
    family      TEXT NOT NULL,
    kernel      TEXT NOT NULL,          -- name or pattern
    rule        TEXT NOT NULL,
    reason      TEXT NOT NULL,
    UNIQUE (enumeration, family, kernel, rule)
) STRICT;

-- ready ─lease─► leased ─last result─► done        leased ─lease ends, BYE─► ready (attempt + 1)
-- ready, leased ─cancel─► cancelled                leased ─given up after too many attempts─► failed
CREATE TABLE unit (
    id          INTEGER PRIMARY KEY,
    task        INTEGER NOT NULL REFERENCES task,
    class       INTEGER NOT NULL REFERENCES device_class,
    kind        TEXT NOT NULL CHECK (kind IN ('enumerate', 'probe', 'race')),
    state       TEXT NOT NULL CHECK (state IN ('ready', 'leased', 'done', 'failed', 'cancelled')),
    priority    INTEGER NOT NULL,
    body        TEXT NOT NULL,          -- JSON: what the kind carries, step and pipeline ids only
    not_worker  INTEGER,                -- a retry goes to another worker while there is one
    attempt     INTEGER NOT NULL DEFAULT 0,
    epoch       INTEGER NOT NULL DEFAULT 0,
    worker      INTEGER REFERENCES worker,
    deadline_ms INTEGER,                -- wall clock, so that it outlives a restart
    created_ms  INTEGER NOT NULL
) STRICT;
CREATE INDEX unit_ready ON unit (state, class, priority DESC, id);
CREATE INDEX unit_task ON unit (task, state, kind);

CREATE TABLE result (
    id          INTEGER PRIMARY KEY,
    unit        INTEGER NOT NULL REFERENCES unit,
    attempt     INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    step        INTEGER REFERENCES step,
    pipeline    INTEGER REFERENCES pipeline,
    task        INTEGER NOT NULL,
    worker      INTEGER NOT NULL,
    status      TEXT NOT NULL,
    reason      TEXT NOT NULL,
    us          REAL,                   -- NULL unless ok or slow
    mad         REAL,
    err         REAL,
    row_err     REAL,
    verified    INTEGER NOT NULL,
    late        INTEGER NOT NULL CHECK (late IN (0, 1)), -- of a lease that had ended: a sample, never a decision
    final       INTEGER NOT NULL CHECK (final IN (0, 1)), -- decides its step for the task; 0: late, or a death that was tried again
    samples     BLOB,                   -- little-endian float32, us
    extra       TEXT,                   -- JSON of what has no column: mode, canary, dropped_at, fresh, race
    at_ms       INTEGER NOT NULL,
    UNIQUE (unit, attempt, seq)
) STRICT;
-- No step is counted twice: at most one result of a task decides it. A race's results have no step (NULLs differ).
CREATE UNIQUE INDEX result_final ON result (task, step) WHERE final = 1;
CREATE INDEX result_other ON result (task, step) WHERE final = 0;

CREATE TABLE pipeline (
    id          INTEGER PRIMARY KEY,
    task        INTEGER NOT NULL REFERENCES task,
    place       INTEGER NOT NULL,       -- by forecast, from 1, within its layout
    steps       TEXT NOT NULL,          -- JSON array of step ids, in order
    structure   TEXT NOT NULL,          -- "sort | gather+gemm1+act | gemm2+weight+combine"
    block_m     INTEGER NOT NULL,
    layout      TEXT NOT NULL,          -- "w1=panel16 w2=panel16"
    sum_us      REAL NOT NULL,          -- of its steps and a launch gap each
    forecast_us REAL NOT NULL,          -- sum_us, corrected by what its structure took in earlier batches
    finalist    INTEGER NOT NULL CHECK (finalist IN (0, 1)),
    UNIQUE (task, steps)
) STRICT;

CREATE TABLE layout_choice (            -- one weight layout for a layer model of a batch on a class
    batch       INTEGER NOT NULL REFERENCES batch,
    class       INTEGER NOT NULL REFERENCES device_class,
    layer_model TEXT NOT NULL,
    layout      TEXT NOT NULL,
    us          REAL NOT NULL,          -- weighted forecast over the ladder
    body        TEXT NOT NULL,          -- JSON: every layout with its forecast, and what layout=free would gain
    PRIMARY KEY (batch, class, layer_model)
) STRICT;

CREATE TABLE config (                   -- the winning pipeline of a task
    id          INTEGER PRIMARY KEY,
    task        INTEGER NOT NULL UNIQUE REFERENCES task,
    shape       INTEGER NOT NULL REFERENCES shape,
    class       INTEGER NOT NULL REFERENCES device_class,
    model       INTEGER NOT NULL REFERENCES device_model,
    pipeline    INTEGER NOT NULL REFERENCES pipeline,
    us          REAL NOT NULL,          -- median of the winner's fresh samples
    us1         REAL NOT NULL,          -- share of the steps up to stage 1
    us2         REAL NOT NULL,
    err1        REAL NOT NULL,
    err2        REAL NOT NULL,
    ties        TEXT NOT NULL,          -- JSON array of pipeline ids that the samples cannot tell from it
    provenance  TEXT NOT NULL,          -- JSON: version, revision, compiler, worker, host, seed, routing, search
    at_ms       INTEGER NOT NULL
) STRICT;
CREATE INDEX config_key ON config (class, shape, at_ms);

CREATE TABLE structure_ratio (          -- measured end to end over forecast; of closed batches only
    class       INTEGER NOT NULL REFERENCES device_class,
    structure   TEXT NOT NULL,
    batch       INTEGER NOT NULL REFERENCES batch,
    n           INTEGER NOT NULL,
    log_ratio   REAL NOT NULL,          -- mean of ln(measured / forecast)
    log_spread  REAL NOT NULL,          -- its standard deviation
    PRIMARY KEY (class, structure, batch)
) STRICT;

CREATE TABLE strike (                   -- a step that killed a runner
    id          INTEGER PRIMARY KEY,
    kernel      INTEGER NOT NULL REFERENCES kernel,
    class       INTEGER NOT NULL REFERENCES device_class,
    worker      INTEGER NOT NULL REFERENCES worker,
    task        INTEGER NOT NULL REFERENCES task,
    status      TEXT NOT NULL,
    reason      TEXT NOT NULL,
    at_ms       INTEGER NOT NULL
) STRICT;
CREATE INDEX strike_kernel ON strike (kernel, class);

CREATE TABLE quarantine (
    kernel      INTEGER NOT NULL REFERENCES kernel,
    class       INTEGER NOT NULL REFERENCES device_class,
    reason      TEXT NOT NULL,
    at_ms       INTEGER NOT NULL,
    PRIMARY KEY (kernel, class)
) STRICT;

CREATE TABLE event (                    -- what SSE sends; the id is Last-Event-ID
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    batch       INTEGER,                -- NULL: of the farm
    kind        TEXT NOT NULL,          -- batch, task, result, worker, config, quarantine
    body        TEXT NOT NULL,
    at_ms       INTEGER NOT NULL
) STRICT;
CREATE INDEX event_batch ON event (batch, id);
