-- The database of moefarmd: all state of a farm. One thread of moefarmd writes it; readers use WAL snapshots.
--
-- This file creates a new database. A later change of the schema edits this file and adds a migration for
-- existing databases: see server/store/migrations/README.md.
--
-- Columns named *_ms are milliseconds since 1970 (wall clock), us and *_us microseconds of device time.
-- Enumerations are text. JSON formats are described in docs/protocol.md and docs/api.md.

-- ---- the farm, its devices and workers ----

CREATE TABLE farm (                     -- exactly one row
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    -- start time of moefarmd in ms, strictly increasing; part of every lease
    epoch       INTEGER NOT NULL,
    created_ms  INTEGER NOT NULL,
    samples_dropped_through INTEGER NOT NULL DEFAULT 0 -- id of the last result whose raw samples were dropped
) STRICT;

CREATE TABLE device_class (             -- devices whose tuned tables are interchangeable
    id          INTEGER PRIMARY KEY,
    gfx         TEXT NOT NULL,          -- "gfx942", "sm_90"
    cu_num      INTEGER NOT NULL CHECK (cu_num > 0),
    UNIQUE (gfx, cu_num)
) STRICT;

CREATE TABLE device_model (             -- a product (SKU) of a class; times are compared within a model only
    id          INTEGER PRIMARY KEY,
    class       INTEGER NOT NULL REFERENCES device_class,
    name        TEXT NOT NULL,
    simulated   INTEGER NOT NULL CHECK (simulated IN (0, 1)),
    -- JSON: member `device` of the HELLO of the model's oldest worker that is not quarantined
    body        TEXT NOT NULL,
    -- a simulated and a real device of one name are two models, so that a false claim cannot mix their times
    UNIQUE (class, name, simulated)
) STRICT;

CREATE TABLE family (                   -- a kernel family at a revision
    id          INTEGER PRIMARY KEY,
    name        TEXT NOT NULL,
    revision    TEXT NOT NULL,
    UNIQUE (name, revision)
) STRICT;

CREATE TABLE family_set (               -- families that a unit needs: its worker must offer all of them
    id          INTEGER PRIMARY KEY,
    families    TEXT NOT NULL UNIQUE    -- JSON array of family ids in ascending order
) STRICT;

CREATE TABLE worker (
    id          INTEGER PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,
    instance    TEXT NOT NULL,          -- random per process, so that a restart is detected
    model       INTEGER NOT NULL REFERENCES device_model,
    host        TEXT NOT NULL,
    pid         INTEGER NOT NULL,
    version     TEXT NOT NULL,
    revision    TEXT NOT NULL,          -- kernel revision of its build
    families    TEXT NOT NULL,          -- JSON: {family: revision}
    state       TEXT NOT NULL CHECK (state IN ('idle', 'busy', 'draining', 'lost', 'gone')),
    unit        INTEGER,                -- unit in progress
    step        TEXT NOT NULL DEFAULT '', -- step in progress
    joined_ms   INTEGER NOT NULL,
    seen_ms     INTEGER NOT NULL,
    busy        TEXT NOT NULL DEFAULT '{}', -- JSON: seconds by phase since the worker joined
    n_results   INTEGER NOT NULL DEFAULT 0,
    n_deaths    INTEGER NOT NULL DEFAULT 0, -- runners that crashed or hung
    sandbox     TEXT NOT NULL DEFAULT '', -- limits of its runners, as text for people
    device      TEXT NOT NULL DEFAULT '{}', -- JSON: member `device` of its HELLO or of a later BEAT
    -- reason why the worker gets no units and its statistics do not count (server/farm/trust.h); '': it is
    -- trusted
    quarantined TEXT NOT NULL DEFAULT '',
    n_undone    INTEGER NOT NULL DEFAULT 0, -- messages that could not be applied
    refused_families TEXT NOT NULL DEFAULT '[]' -- JSON: [{name, why}], families that it could not load
) STRICT;

CREATE TABLE worker_family (            -- families that a worker offers
    worker      INTEGER NOT NULL REFERENCES worker,
    family      INTEGER NOT NULL REFERENCES family,
    PRIMARY KEY (worker, family)
) STRICT, WITHOUT ROWID;

-- Sets of which the worker offers all families; derived from worker_family. An idle worker looks for ready
-- units set by set, so it never scans units that it cannot run.
CREATE TABLE worker_family_set (
    worker      INTEGER NOT NULL REFERENCES worker,
    family_set  INTEGER NOT NULL REFERENCES family_set,
    PRIMARY KEY (worker, family_set)
) STRICT, WITHOUT ROWID;
CREATE INDEX worker_family_set_set ON worker_family_set (family_set);

-- ---- access: only hashes of secrets are stored ----

CREATE TABLE token (
    id          INTEGER PRIMARY KEY,
    role        TEXT NOT NULL CHECK (role IN ('read', 'submit', 'admin', 'worker')),
    name        TEXT NOT NULL,          -- name of the owner, for display
    -- role worker: hash of the public key; other roles: hash of the secret
    hash        BLOB NOT NULL UNIQUE CHECK (length(hash) = 32),
    created_ms  INTEGER NOT NULL,
    expires_ms  INTEGER NOT NULL,       -- 0: never
    used_ms     INTEGER,                -- role worker: time at which the token enrolled its only key
    revoked_ms  INTEGER
) STRICT;

CREATE TABLE worker_key (               -- CURVE keys of enrolled workers; one valid key per worker name
    id          INTEGER PRIMARY KEY,
    worker      TEXT NOT NULL,
    public_key  BLOB NOT NULL UNIQUE CHECK (length(public_key) = 32),
    token       INTEGER NOT NULL UNIQUE REFERENCES token, -- enrolment token
    enrolled_ms INTEGER NOT NULL,
    revoked_ms  INTEGER
) STRICT;
CREATE UNIQUE INDEX worker_key_worker ON worker_key (worker) WHERE revoked_ms IS NULL;

-- ---- batches and tasks ----

CREATE TABLE shape (
    id          INTEGER PRIMARY KEY,
    row         TEXT NOT NULL UNIQUE,   -- the twelve canonical values of a shape
    layer_model TEXT NOT NULL,          -- the row without its token count
    token       INTEGER NOT NULL        -- token count
) STRICT;
CREATE INDEX shape_layer_model ON shape (layer_model, token);

CREATE TABLE batch (
    id          INTEGER PRIMARY KEY,
    name        TEXT NOT NULL,
    -- 'cancelled' with receipt '': the batch is being submitted (server/farm/submit.c)
    state       TEXT NOT NULL CHECK (state IN ('open', 'done', 'cancelled')),
    priority    INTEGER NOT NULL,
    options     TEXT NOT NULL,          -- JSON: the accepted options, with defaults
    idempotency_key TEXT UNIQUE,
    body_hash   TEXT NOT NULL,          -- hash of the request; the same key with another body is refused
    receipt     TEXT NOT NULL,          -- JSON: the response, repeated for the same key
    created_ms  INTEGER NOT NULL,
    ended_ms    INTEGER
) STRICT;

-- Families that a batch tunes on a class: those that available workers offered when the first task began
CREATE TABLE batch_family (
    batch       INTEGER NOT NULL REFERENCES batch,
    class       INTEGER NOT NULL REFERENCES device_class,
    family      INTEGER NOT NULL REFERENCES family,
    PRIMARY KEY (batch, class, family)
) STRICT, WITHOUT ROWID;

CREATE TABLE task (                     -- one shape of a batch on one device class
    id          INTEGER PRIMARY KEY,
    batch       INTEGER NOT NULL REFERENCES batch,
    shape       INTEGER NOT NULL REFERENCES shape,
    -- NULL (only in state waiting): the class of the first worker to join
    class       INTEGER REFERENCES device_class,
    -- waiting: no worker of the class with a family of the batch is connected
    state       TEXT NOT NULL CHECK (state IN ('waiting', 'enumerating', 'probing', 'ranking', 'racing',
                                               'done', 'comparing', 'failed', 'cancelled')),
    reason      TEXT NOT NULL DEFAULT '', -- failed: why it failed; waiting: what it waits for
    model       INTEGER REFERENCES device_model, -- set by the first probe: one model per task
    n_candidates INTEGER NOT NULL DEFAULT 0, -- number of steps that may be measured
    n_steps     INTEGER NOT NULL DEFAULT 0, -- number of them in units; with a time budget it grows by rounds
    n_measured  INTEGER NOT NULL DEFAULT 0, -- number of steps with a deciding result
    probe_ms    INTEGER NOT NULL DEFAULT 0, -- time that workers spent on its probes, for the time budget
    ended_ms    INTEGER,
    worker      INTEGER,                -- shape_grouped: the only worker that may measure the task; NULL: any
    UNIQUE (batch, shape, class),
    CHECK (class IS NOT NULL OR state IN ('waiting', 'cancelled'))
) STRICT;
CREATE INDEX task_state ON task (state, class);
CREATE INDEX task_shape ON task (shape);
CREATE INDEX task_worker ON task (worker) WHERE worker IS NOT NULL;

CREATE TABLE task_consumer (            -- the consumers that a task serves (common/moe/consumer.h)
    task        INTEGER NOT NULL REFERENCES task,
    consumer    TEXT NOT NULL,
    reason      TEXT NOT NULL DEFAULT '', -- why the consumer gets no config; '': it has one, or may get one
    PRIMARY KEY (task, consumer)
) STRICT, WITHOUT ROWID;

-- ---- candidates ----

CREATE TABLE kernel (                   -- a step's name at a revision of its family
    id          INTEGER PRIMARY KEY,
    family      TEXT NOT NULL,
    revision    TEXT NOT NULL,
    name        TEXT NOT NULL,
    UNIQUE (family, revision, name)
) STRICT;

CREATE TABLE enumeration (              -- the steps that a family offers for a shape on a class
    id          INTEGER PRIMARY KEY,
    class       INTEGER NOT NULL REFERENCES device_class,
    shape       INTEGER NOT NULL REFERENCES shape,
    family      INTEGER NOT NULL REFERENCES family,
    complete    INTEGER NOT NULL DEFAULT 0 CHECK (complete IN (0, 1)),
    worker      INTEGER REFERENCES worker, -- the worker that lists the steps; NULL: none yet, or not known
    -- own id: its worker was quarantined, its key revoked, or another worker contradicted it, so later tasks
    -- enumerate again; 0: in use
    dropped     INTEGER NOT NULL DEFAULT 0,
    UNIQUE (class, shape, family, dropped)
) STRICT;

CREATE TABLE task_enumeration (         -- the task's steps: those of these enumerations
    task        INTEGER NOT NULL REFERENCES task,
    enumeration INTEGER NOT NULL REFERENCES enumeration,
    PRIMARY KEY (task, enumeration)
) STRICT, WITHOUT ROWID;
CREATE INDEX task_enumeration_enumeration ON task_enumeration (enumeration);

CREATE TABLE step (
    id          INTEGER PRIMARY KEY,
    enumeration INTEGER NOT NULL REFERENCES enumeration,
    kernel      INTEGER NOT NULL REFERENCES kernel,
    covers      TEXT NOT NULL,          -- ops that the step covers, "gather+gemm1+act"; "-" for a conversion
    block_m     INTEGER NOT NULL,       -- rows of a sorted block; 0: any
    flops       REAL NOT NULL,
    bytes       REAL NOT NULL,          -- minimum memory traffic
    body        TEXT NOT NULL,          -- JSON of mf_step_print
    UNIQUE (enumeration, kernel)
) STRICT;

-- reason why a family does not offer a step, or why a batch excludes a step
CREATE TABLE rejection (
    id          INTEGER PRIMARY KEY,
    enumeration INTEGER NOT NULL REFERENCES enumeration,
    batch       INTEGER REFERENCES batch, -- NULL: the rejection holds for all batches
    family      TEXT NOT NULL,
    kernel      TEXT NOT NULL,          -- name or pattern
    rule        TEXT NOT NULL,
    reason      TEXT NOT NULL           -- a sentence
) STRICT;
CREATE UNIQUE INDEX rejection_once ON rejection (enumeration, family, kernel, rule, coalesce(batch, 0));

CREATE TABLE strike (                   -- a crash or hang of a runner, caused by a step
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

CREATE TABLE quarantine (               -- kernels that are not run on a class any more
    kernel      INTEGER NOT NULL REFERENCES kernel,
    class       INTEGER NOT NULL REFERENCES device_class,
    reason      TEXT NOT NULL,
    at_ms       INTEGER NOT NULL,
    PRIMARY KEY (kernel, class)
) STRICT;

-- ---- work units ----

-- ready ──lease──► leased ──last result──► done
-- leased ──lease expires, BYE──► ready (attempt + 1) ──too many attempts──► failed
-- ready, leased ──cancel──► cancelled
CREATE TABLE unit (
    id          INTEGER PRIMARY KEY,
    task        INTEGER NOT NULL REFERENCES task,
    class       INTEGER NOT NULL REFERENCES device_class,
    kind        TEXT NOT NULL CHECK (kind IN ('enumerate', 'probe', 'race', 'compare')),
    state       TEXT NOT NULL CHECK (state IN ('ready', 'leased', 'done', 'failed', 'cancelled')),
    priority    INTEGER NOT NULL,
    families    INTEGER NOT NULL REFERENCES family_set,
    body        TEXT NOT NULL,          -- JSON: id of the enumeration, or ids of the steps or pipelines
    avoid_worker INTEGER,               -- worker that runs this unit only if no other worker can
    attempt     INTEGER NOT NULL DEFAULT 0,
    epoch       INTEGER NOT NULL DEFAULT 0,
    worker      INTEGER REFERENCES worker,
    deadline_ms INTEGER,                -- end of the lease; wall clock, so that it survives a restart
    created_ms  INTEGER NOT NULL,
    -- Start tag of start-time fair queueing (server/farm/unit.c): among units of one priority the unit with
    -- the lowest tag goes first
    start_tag   INTEGER NOT NULL DEFAULT 0,
    -- For a ready unit: 1 if another unit of its task is leased. The triggers below maintain this column.
    -- Through the index unit_free an idle worker then finds a task without workers, without scanning the
    -- units of all other tasks.
    busy        INTEGER NOT NULL DEFAULT 0 CHECK (busy IN (0, 1))
) STRICT;
CREATE INDEX unit_ready ON unit (state, class, families, priority DESC, start_tag, id);
CREATE INDEX unit_free ON unit (class, families, priority DESC, start_tag, id)
    WHERE state = 'ready' AND busy = 0;
CREATE INDEX unit_start_tag ON unit (class, priority, start_tag) WHERE state = 'ready';
CREATE INDEX unit_enumerate ON unit (class, priority DESC, id) WHERE state = 'ready' AND kind = 'enumerate';
CREATE INDEX unit_task ON unit (task, state, kind);

CREATE TRIGGER unit_added AFTER INSERT ON unit
WHEN new.state = 'ready' AND EXISTS (SELECT 1 FROM unit WHERE task = new.task AND state = 'leased') BEGIN
    UPDATE unit SET busy = 1 WHERE id = new.id;
END;

-- Runs when a task gets its first lease: marks its ready units as busy
CREATE TRIGGER unit_leased AFTER UPDATE OF state ON unit
WHEN new.state = 'leased' AND old.state <> 'leased'
    AND NOT EXISTS (SELECT 1 FROM unit WHERE task = new.task AND state = 'leased' AND id <> new.id) BEGIN
    UPDATE unit SET busy = 1 WHERE task = new.task AND state = 'ready' AND busy = 0;
END;

-- Runs when the last lease of a task ends, or when a unit is released while its task has other leases
CREATE TRIGGER unit_unleased AFTER UPDATE OF state ON unit
WHEN old.state = 'leased' AND new.state <> 'leased'
    AND (new.state = 'ready'
        OR NOT EXISTS (SELECT 1 FROM unit WHERE task = new.task AND state = 'leased')) BEGIN
    UPDATE unit SET busy = EXISTS (SELECT 1 FROM unit WHERE task = new.task AND state = 'leased')
    WHERE task = new.task AND state = 'ready';
END;

CREATE TABLE unit_grant (               -- every lease of a unit, also ended ones
    unit        INTEGER NOT NULL REFERENCES unit,
    attempt     INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    worker      INTEGER NOT NULL REFERENCES worker, -- only this worker may send results of the attempt
    PRIMARY KEY (unit, attempt)
) STRICT, WITHOUT ROWID;

-- ---- results ----

CREATE TABLE result (
    id          INTEGER PRIMARY KEY,
    unit        INTEGER NOT NULL REFERENCES unit,
    attempt     INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    step        INTEGER REFERENCES step,        -- probe: the measured step
    pipeline    INTEGER REFERENCES pipeline,    -- race: the measured pipeline
    task        INTEGER NOT NULL,
    worker      INTEGER NOT NULL,
    status      TEXT NOT NULL,
    reason      TEXT NOT NULL,
    us          REAL,                   -- median; NULL unless the status is ok or slow
    mad         REAL,                   -- median absolute deviation, us
    err         REAL,                   -- mismatch ratio
    row_err     REAL,                   -- largest row error
    verified    INTEGER NOT NULL,
    -- 1: the lease had ended, so the result decides nothing
    late        INTEGER NOT NULL CHECK (late IN (0, 1)),
    final       INTEGER NOT NULL CHECK (final IN (0, 1)), -- 1: decides its step or race
    samples     BLOB,                   -- little-endian float32, us
    -- JSON of members without a column: mode, canary, dropped_at, fresh, race
    extra       TEXT,
    at_ms       INTEGER NOT NULL,
    UNIQUE (unit, attempt, seq)
) STRICT;
-- A task has at most one deciding result per step. (The index does not restrict the results of a race,
-- because their step is NULL, and NULLs differ.)
CREATE UNIQUE INDEX result_final ON result (task, step) WHERE final = 1;
CREATE INDEX result_other ON result (task, step) WHERE final = 0;

-- Number of deciding results per second. Triggers maintain it, so that the cost of a progress query does not
-- grow with the number of results.
CREATE TABLE pace (
    batch       INTEGER NOT NULL REFERENCES batch,
    at_s        INTEGER NOT NULL,       -- result.at_ms / 1000 (clock of the worker)
    measured    INTEGER NOT NULL,       -- number of steps that were decided
    refused     INTEGER NOT NULL,       -- number of decided steps with a status other than ok and slow
    raced       INTEGER NOT NULL,       -- number of pipelines with a deciding race result
    PRIMARY KEY (batch, at_s)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER pace_add AFTER INSERT ON result WHEN new.final = 1 BEGIN
    INSERT INTO pace VALUES (
        (SELECT batch FROM task WHERE id = new.task), new.at_ms / 1000, new.step IS NOT NULL,
        new.step IS NOT NULL AND new.status NOT IN ('ok', 'slow'), new.pipeline IS NOT NULL)
    ON CONFLICT (batch, at_s) DO UPDATE SET measured = measured + excluded.measured,
        refused = refused + excluded.refused, raced = raced + excluded.raced;
END;

CREATE TRIGGER pace_remove AFTER UPDATE OF final ON result WHEN old.final = 1 AND new.final = 0 BEGIN
    UPDATE pace SET measured = measured - (old.step IS NOT NULL),
        refused = refused - (old.step IS NOT NULL AND old.status NOT IN ('ok', 'slow')),
        raced = raced - (old.pipeline IS NOT NULL)
    WHERE batch = (SELECT batch FROM task WHERE id = old.task) AND at_s = old.at_ms / 1000;
END;

-- ---- pipelines and winners ----

CREATE TABLE pipeline (
    id          INTEGER PRIMARY KEY,
    task        INTEGER NOT NULL REFERENCES task,
    consumer    TEXT NOT NULL DEFAULT 'moefarm', -- each consumer ranks and races pipelines of its own
    place       INTEGER NOT NULL,       -- rank by forecast among the pipelines of its weight layout, from 1
    steps       TEXT NOT NULL,          -- JSON array of step ids, in order
    structure   TEXT NOT NULL,          -- "sort | gather+gemm1+act | gemm2+weight+combine"
    block_m     INTEGER NOT NULL,
    layout      TEXT NOT NULL,          -- weight layouts: "w1=panel16 w2=panel16"
    sum_us      REAL NOT NULL,          -- sum of its steps' times, plus one launch gap per step
    forecast_us REAL NOT NULL,          -- sum_us, corrected by structure_ratio
    finalist    INTEGER NOT NULL CHECK (finalist IN (0, 1)), -- 1: the pipeline races
    -- Time in the race, paired by round with the race's winner, so that the times of a task's pipelines can
    -- be compared; race_mad: median absolute deviation of the paired samples. NULL: no time in the race.
    race_us     REAL,
    race_mad    REAL,
    UNIQUE (task, consumer, steps)
) STRICT;

CREATE TABLE layout_race (              -- winner of a task's race among the pipelines of one weight layout
    task        INTEGER NOT NULL REFERENCES task,
    consumer    TEXT NOT NULL DEFAULT 'moefarm',
    layout      TEXT NOT NULL,
    pipeline    INTEGER NOT NULL REFERENCES pipeline,
    us          REAL NOT NULL,          -- as in config
    mad         REAL,
    n           INTEGER NOT NULL DEFAULT 0,
    tries       INTEGER NOT NULL DEFAULT 1,
    unstable    TEXT NOT NULL DEFAULT '',
    ties        TEXT NOT NULL,          -- as config.ties
    provenance  TEXT NOT NULL,          -- as config.provenance
    PRIMARY KEY (task, consumer, layout)
) STRICT, WITHOUT ROWID;

-- The weight layout of a layer model for a consumer. If the forecasts of several layouts are statistically
-- tied, the tasks race over these layouts, and the races decide. Until the races have ended, member `pending`
-- of body is true and layout is the first layout by forecast.
CREATE TABLE layout_choice (
    batch       INTEGER NOT NULL REFERENCES batch,
    class       INTEGER NOT NULL REFERENCES device_class,
    layer_model TEXT NOT NULL,
    consumer    TEXT NOT NULL DEFAULT 'moefarm',
    layout      TEXT NOT NULL,
    us          REAL NOT NULL,          -- total time over all token counts, from the races or the forecasts
    -- JSON: forecast and race sums of every layout, the gain of layout=free
    body        TEXT NOT NULL,
    PRIMARY KEY (batch, class, layer_model, consumer)
) STRICT;

CREATE TABLE config (                   -- the winning pipeline of a task for a consumer
    id          INTEGER PRIMARY KEY,
    task        INTEGER NOT NULL REFERENCES task,
    consumer    TEXT NOT NULL DEFAULT 'moefarm',
    shape       INTEGER NOT NULL REFERENCES shape,
    class       INTEGER NOT NULL REFERENCES device_class,
    model       INTEGER NOT NULL REFERENCES device_model,
    pipeline    INTEGER NOT NULL REFERENCES pipeline,
    -- Median of the rerun's samples (without a rerun: of the race; for a kept row: of the comparison), median
    -- absolute deviation and number of the same samples. mad NULL, n 0: unknown.
    us          REAL NOT NULL,
    mad         REAL,
    n           INTEGER NOT NULL DEFAULT 0,
    tries       INTEGER NOT NULL DEFAULT 1, -- number of times that the pipeline was rerun, or 1
    -- Why no rerun was accepted (measure/race/rerun_judge.h, common/moe/token_order.h), as a sentence. '': us
    -- is accepted.
    unstable    TEXT NOT NULL DEFAULT '',
    us1         REAL NOT NULL,          -- part of us: the steps up to and including stage 1
    us2         REAL NOT NULL,          -- part of us: the remaining steps
    err1        REAL NOT NULL,
    err2        REAL NOT NULL,
    ties        TEXT NOT NULL,          -- JSON array: ids of pipelines statistically tied with the winner
    -- JSON: version, revision, compiler, worker, host, seed, routing, search
    provenance  TEXT NOT NULL,
    at_ms       INTEGER NOT NULL,
    -- JSON array, one object per other routing profile: {routing, us, best_us, regret, best, tie, status,
    -- reason}. us: median of the winner; best, best_us: fastest pipeline in the same rounds; regret: us /
    -- best_us - 1, 0 if tied; null if the winner could not be timed (status and reason say why).
    regret      TEXT NOT NULL DEFAULT '[]',
    UNIQUE (task, consumer)
) STRICT;
CREATE INDEX config_key ON config (class, shape, at_ms);

-- Ratio of measured time to forecast of each pipeline structure, by the worker that raced it, from batches
-- that have ended. server/choose/consensus.h combines the workers of a model.
CREATE TABLE structure_ratio (
    model       INTEGER NOT NULL REFERENCES device_model,
    structure   TEXT NOT NULL,
    batch       INTEGER NOT NULL REFERENCES batch,
    worker      INTEGER NOT NULL REFERENCES worker,
    n           INTEGER NOT NULL,
    log_ratio   REAL NOT NULL,          -- mean of ln(measured / forecast), bounded
    log_spread  REAL NOT NULL,          -- standard deviation of ln(measured / forecast)
    PRIMARY KEY (model, structure, batch, worker)
) STRICT, WITHOUT ROWID;

-- ---- promotion: replacing a deployed row ----

CREATE TABLE baseline_row (             -- deployed rows in the baseline of a batch
    batch       INTEGER NOT NULL REFERENCES batch,
    shape       INTEGER NOT NULL REFERENCES shape,
    class       INTEGER NOT NULL REFERENCES device_class,
    pipeline    TEXT NOT NULL,          -- "family:step|family:step"; "": the row names no pipeline
    us          REAL NOT NULL,          -- time in the baseline; not comparable with new measurements
    line        INTEGER NOT NULL,       -- line number in the baseline file
    PRIMARY KEY (batch, shape, class)
) STRICT, WITHOUT ROWID;

-- Decision between a deployed row and the winner of a race, for batches with promote=improved.
-- pending ──comparisons──► promoted, kept or undecided. If promoted, the task's config is the new row; if
-- kept, the config is the remeasured deployed row. Exports leave out the config while the decision is
-- pending, and if the decision is undecided.
CREATE TABLE promotion (
    task        INTEGER NOT NULL REFERENCES task,
    consumer    TEXT NOT NULL DEFAULT 'moefarm',
    known       TEXT NOT NULL,          -- deployed pipeline "family:step|family:step"; "": no pipeline
    known_us    REAL,                   -- time in the deployed row; NULL: no deployed row
    source      TEXT NOT NULL,          -- "line 7 of the baseline", "batch 3"; "": no deployed row
    -- the deployed row as a pipeline of this task; NULL: the row is no pipeline of this task
    old         INTEGER REFERENCES pipeline,
    -- The race's winner. NULL: there was no race, because the deployed row names no pipeline
    new         INTEGER REFERENCES pipeline CHECK (new IS NOT NULL OR decision = 'undecided'),
    new_us      REAL,
    least       REAL NOT NULL,          -- minimum improvement: 0.03 is three percent
    decision    TEXT NOT NULL CHECK (decision IN ('pending', 'promoted', 'kept', 'undecided')),
    reason      TEXT NOT NULL,
    at_ms       INTEGER NOT NULL,
    PRIMARY KEY (task, consumer)
) STRICT, WITHOUT ROWID;

CREATE TABLE comparison (               -- the deployed pipeline (old) against the winner (new) on one worker
    unit        INTEGER PRIMARY KEY REFERENCES unit,
    task        INTEGER NOT NULL REFERENCES task,
    consumer    TEXT NOT NULL DEFAULT 'moefarm',
    worker      INTEGER NOT NULL REFERENCES worker,
    verdict     TEXT NOT NULL,          -- SAME, FASTER, SLOWER, AMBIGUOUS; "": a pipeline has no time
    low         REAL,                   -- confidence interval of new / old - 1 over the rounds
    mid         REAL,                   -- median of new / old - 1
    high        REAL,
    n           INTEGER NOT NULL,       -- number of rounds in which both pipelines ran
    old_us      REAL,
    new_us      REAL,
    old_status  TEXT NOT NULL,
    new_status  TEXT NOT NULL,
    old_reason  TEXT NOT NULL,
    new_reason  TEXT NOT NULL,
    at_ms       INTEGER NOT NULL
) STRICT;
CREATE INDEX comparison_task ON comparison (task);

-- ---- releases and channels ----

CREATE TABLE release (                  -- a frozen export; never changed
    id          INTEGER PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,   -- a repeated request finds the release by its name
    created_by  TEXT NOT NULL,          -- name of the access token; "": the farm requires no token
    created_ms  INTEGER NOT NULL,
    filters     TEXT NOT NULL,          -- JSON: filters of the export
    sha256      TEXT NOT NULL CHECK (length(sha256) = 64), -- of csv
    manifest_sha256 TEXT NOT NULL CHECK (length(manifest_sha256) = 64),
    n_rows      INTEGER NOT NULL CHECK (n_rows > 0),
    n_left_out  INTEGER NOT NULL,       -- tasks without a row
    -- The large columns are last, because hosts poll the hashes, and SQLite must read all columns that come
    -- before a requested column
    csv         BLOB NOT NULL,
    manifest    BLOB NOT NULL           -- JSON (docs/api.md)
) STRICT;
CREATE INDEX release_sha256 ON release (sha256);

CREATE TABLE release_row (              -- origin of each row of a release
    release     INTEGER NOT NULL REFERENCES release,
    -- row number in the CSV; the first row after the header is 1
    row         INTEGER NOT NULL CHECK (row > 0),
    key         TEXT NOT NULL,          -- the fourteen key values
    us          REAL NOT NULL,          -- time in the table
    names       TEXT NOT NULL,          -- pipeline "family:step|…"
    config      INTEGER NOT NULL REFERENCES config,
    task        INTEGER NOT NULL REFERENCES task, -- the task; the farm keeps its raw samples
    pipeline    INTEGER NOT NULL REFERENCES pipeline,
    PRIMARY KEY (release, row),
    UNIQUE (release, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX release_row_task ON release_row (task);

CREATE TRIGGER release_no_update BEFORE UPDATE ON release
BEGIN SELECT raise(ABORT, 'a release is never changed'); END;
CREATE TRIGGER release_no_delete BEFORE DELETE ON release
BEGIN SELECT raise(ABORT, 'a release is never deleted'); END;
CREATE TRIGGER release_row_no_update BEFORE UPDATE ON release_row
BEGIN SELECT raise(ABORT, 'a release is never changed'); END;
CREATE TRIGGER release_row_no_delete BEFORE DELETE ON release_row
BEGIN SELECT raise(ABORT, 'a release is never deleted'); END;

-- ──stage──► staged ──approve──► current ──rollback──► the release that was current before
CREATE TABLE channel (                  -- a named pointer to the release that deployments pull
    id          INTEGER PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,
    staged      INTEGER REFERENCES release,
    current     INTEGER REFERENCES release,      -- NULL: no release has been approved yet
    approval    INTEGER REFERENCES channel_move, -- move that made the current release current
    created_ms  INTEGER NOT NULL
) STRICT;

CREATE TABLE channel_move (             -- history of a channel; rows never change
    id          INTEGER PRIMARY KEY,
    channel     INTEGER NOT NULL REFERENCES channel,
    move        TEXT NOT NULL CHECK (move IN ('stage', 'approve', 'rollback', 'unstage')),
    -- before the move: the staged release (stage, unstage) or the current release (approve, rollback)
    from_release INTEGER REFERENCES release,
    to_release  INTEGER REFERENCES release CHECK ((to_release IS NULL) = (move = 'unstage')),
    -- approve: the previous approval, to which a rollback returns
    below       INTEGER REFERENCES channel_move,
    moved_by    TEXT NOT NULL,          -- as release.created_by
    reason      TEXT NOT NULL,          -- may be ""
    at_ms       INTEGER NOT NULL
) STRICT;
CREATE INDEX channel_move_channel ON channel_move (channel, id);
CREATE TRIGGER channel_move_no_update BEFORE UPDATE ON channel_move
BEGIN SELECT raise(ABORT, 'a move is never changed'); END;
CREATE TRIGGER channel_move_no_delete BEFORE DELETE ON channel_move
BEGIN SELECT raise(ABORT, 'a move is never deleted'); END;

-- ---- misses: lookups in production that found no row ----

CREATE TABLE miss (
    id          INTEGER PRIMARY KEY,
    gfx         TEXT NOT NULL,          -- device class; the farm may have no worker of this class
    cu_num      INTEGER NOT NULL CHECK (cu_num > 0),
    row         TEXT NOT NULL,          -- the shape, as shape.row
    count       INTEGER NOT NULL CHECK (count > 0), -- number of lookups
    n_sources   INTEGER NOT NULL,       -- number of distinct sources
    first_ms    INTEGER NOT NULL,
    last_ms     INTEGER NOT NULL,
    -- weight layouts in the latest report, "w1=row w2=row"; "": not reported
    layout      TEXT NOT NULL DEFAULT '',
    UNIQUE (gfx, cu_num, row)
) STRICT;
CREATE INDEX miss_count ON miss (count DESC, id);

CREATE TABLE miss_source (              -- hosts that reported a miss; the number per miss is limited
    miss        INTEGER NOT NULL REFERENCES miss ON DELETE CASCADE,
    source      TEXT NOT NULL,
    PRIMARY KEY (miss, source)
) STRICT, WITHOUT ROWID;

CREATE TABLE miss_report (              -- the latest reports, so that a repeated report is counted once
    id          INTEGER PRIMARY KEY,
    idempotency_key TEXT NOT NULL UNIQUE,
    body_hash   TEXT NOT NULL,
    receipt     TEXT NOT NULL,          -- JSON: the response, repeated for the same key
    at_ms       INTEGER NOT NULL
) STRICT;

-- ---- events ----

CREATE TABLE event (                    -- server-sent events; id is the Last-Event-ID
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    batch       INTEGER,                -- NULL: the event concerns the whole farm
    -- batch, task, config, worker, failure, quarantine, promotion, release, channel
    kind        TEXT NOT NULL,
    body        TEXT NOT NULL,          -- JSON
    at_ms       INTEGER NOT NULL
) STRICT;
CREATE INDEX event_batch ON event (batch, id);
