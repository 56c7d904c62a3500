-- One revision per family: enumerations, batches and units name families instead of the revision of a whole
-- worker. An enumeration of an earlier version holds the steps of all families at its revision. It becomes an
-- enumeration of a family "all" that no worker offers, because workers of an earlier version cannot connect.
CREATE TABLE family (
    id          INTEGER PRIMARY KEY,
    name        TEXT NOT NULL,
    revision    TEXT NOT NULL,
    UNIQUE (name, revision)
) STRICT;
INSERT INTO family (name, revision) SELECT DISTINCT 'all', revision FROM enumeration;
INSERT INTO family (name, revision) SELECT 'all', 'none' WHERE NOT EXISTS (SELECT 1 FROM family);

CREATE TABLE family_set (
    id          INTEGER PRIMARY KEY,
    families    TEXT NOT NULL UNIQUE
) STRICT;
INSERT INTO family_set SELECT id, '[' || id || ']' FROM family;

ALTER TABLE worker ADD COLUMN refused_families TEXT NOT NULL DEFAULT '[]';
UPDATE worker SET families = (SELECT json_group_object(value, worker.revision) FROM json_each(families));

CREATE TABLE worker_family (
    worker      INTEGER NOT NULL REFERENCES worker,
    family      INTEGER NOT NULL REFERENCES family,
    PRIMARY KEY (worker, family)
) STRICT, WITHOUT ROWID;

CREATE TABLE worker_family_set (
    worker      INTEGER NOT NULL REFERENCES worker,
    family_set  INTEGER NOT NULL REFERENCES family_set,
    PRIMARY KEY (worker, family_set)
) STRICT, WITHOUT ROWID;
CREATE INDEX worker_family_set_set ON worker_family_set (family_set);

CREATE TABLE batch_family (
    batch       INTEGER NOT NULL REFERENCES batch,
    class       INTEGER NOT NULL REFERENCES device_class,
    family      INTEGER NOT NULL REFERENCES family,
    PRIMARY KEY (batch, class, family)
) STRICT, WITHOUT ROWID;
INSERT INTO batch_family SELECT DISTINCT g.batch, g.class, f.id FROM task g
    JOIN enumeration e ON e.id = g.enumeration JOIN family f ON f.revision = e.revision;

-- The tables enumeration and unit are created again, as in 02_trust.sql.
PRAGMA defer_foreign_keys = ON;
CREATE TEMP TABLE old_task_enumeration AS SELECT id AS task, enumeration FROM task
    WHERE enumeration IS NOT NULL;
CREATE TEMP TABLE old_unit AS SELECT u.*, coalesce((SELECT f.id FROM task g JOIN enumeration e
    ON e.id = g.enumeration JOIN family f ON f.revision = e.revision WHERE g.id = u.task),
    (SELECT min(id) FROM family)) AS families FROM unit u;
DROP INDEX task_enumeration;
ALTER TABLE task DROP COLUMN enumeration;

CREATE TEMP TABLE old_enumeration AS SELECT e.id, e.class, e.shape, f.id AS family, e.complete, e.worker,
    e.dropped FROM enumeration e JOIN family f ON f.revision = e.revision;
DROP TABLE enumeration;
CREATE TABLE enumeration (
    id          INTEGER PRIMARY KEY,
    class       INTEGER NOT NULL REFERENCES device_class,
    shape       INTEGER NOT NULL REFERENCES shape,
    family      INTEGER NOT NULL REFERENCES family,
    complete    INTEGER NOT NULL DEFAULT 0 CHECK (complete IN (0, 1)),
    worker      INTEGER REFERENCES worker,
    dropped     INTEGER NOT NULL DEFAULT 0,
    UNIQUE (class, shape, family, dropped)
) STRICT;
INSERT INTO enumeration (id, class, shape, family, complete, worker, dropped)
    SELECT id, class, shape, family, complete, worker, dropped FROM old_enumeration;
DROP TABLE old_enumeration;

CREATE TABLE task_enumeration (
    task        INTEGER NOT NULL REFERENCES task,
    enumeration INTEGER NOT NULL REFERENCES enumeration,
    PRIMARY KEY (task, enumeration)
) STRICT, WITHOUT ROWID;
INSERT INTO task_enumeration SELECT task, enumeration FROM old_task_enumeration;
DROP TABLE old_task_enumeration;
CREATE INDEX task_enumeration_enumeration ON task_enumeration (enumeration);

DROP TABLE unit;
CREATE TABLE unit (
    id          INTEGER PRIMARY KEY,
    task        INTEGER NOT NULL REFERENCES task,
    class       INTEGER NOT NULL REFERENCES device_class,
    kind        TEXT NOT NULL CHECK (kind IN ('enumerate', 'probe', 'race', 'compare')),
    state       TEXT NOT NULL CHECK (state IN ('ready', 'leased', 'done', 'failed', 'cancelled')),
    priority    INTEGER NOT NULL,
    families    INTEGER NOT NULL REFERENCES family_set,
    body        TEXT NOT NULL,
    avoid_worker INTEGER,
    attempt     INTEGER NOT NULL DEFAULT 0,
    epoch       INTEGER NOT NULL DEFAULT 0,
    worker      INTEGER REFERENCES worker,
    deadline_ms INTEGER,
    created_ms  INTEGER NOT NULL,
    start_tag   INTEGER NOT NULL DEFAULT 0,
    busy        INTEGER NOT NULL DEFAULT 0 CHECK (busy IN (0, 1))
) STRICT;
INSERT INTO unit (id, task, class, kind, state, priority, body, avoid_worker, attempt, epoch, worker,
    deadline_ms, created_ms, start_tag, busy, families)
    SELECT id, task, class, kind, state, priority, body, avoid_worker, attempt, epoch, worker, deadline_ms,
    created_ms, start_tag, busy, families FROM old_unit;
UPDATE unit SET body = json_object('enumeration', (SELECT min(t.enumeration) FROM task_enumeration t
    WHERE t.task = unit.task)) WHERE kind = 'enumerate';
DROP TABLE old_unit;
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
CREATE TRIGGER unit_leased AFTER UPDATE OF state ON unit
WHEN new.state = 'leased' AND old.state <> 'leased'
    AND NOT EXISTS (SELECT 1 FROM unit WHERE task = new.task AND state = 'leased' AND id <> new.id) BEGIN
    UPDATE unit SET busy = 1 WHERE task = new.task AND state = 'ready' AND busy = 0;
END;
CREATE TRIGGER unit_unleased AFTER UPDATE OF state ON unit
WHEN old.state = 'leased' AND new.state <> 'leased'
    AND (new.state = 'ready'
        OR NOT EXISTS (SELECT 1 FROM unit WHERE task = new.task AND state = 'leased')) BEGIN
    UPDATE unit SET busy = EXISTS (SELECT 1 FROM unit WHERE task = new.task AND state = 'leased')
    WHERE task = new.task AND state = 'ready';
END;

-- Rankings per consumer. Until now a batch had one consumer, whose name was an option of the batch.
CREATE TABLE task_consumer (
    task        INTEGER NOT NULL REFERENCES task,
    consumer    TEXT NOT NULL,
    reason      TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (task, consumer)
) STRICT, WITHOUT ROWID;
INSERT INTO task_consumer (task, consumer)
    SELECT g.id, coalesce(json_extract(b.options, '$.consumer'), 'moefarm')
    FROM task g JOIN batch b ON b.id = g.batch;
UPDATE batch SET options = json_set(options, '$.consumer', json_array(json_extract(options, '$.consumer')))
    WHERE json_extract(options, '$.consumer') IS NOT NULL;
UPDATE unit SET body = json_set(body, '$.consumer',
        (SELECT consumer FROM task_consumer c WHERE c.task = unit.task))
    WHERE kind IN ('race', 'compare');

-- Foreign keys are off during migrations, so a dropped table does not delete what refers to it.
CREATE TABLE new_pipeline (
    id          INTEGER PRIMARY KEY,
    task        INTEGER NOT NULL REFERENCES task,
    consumer    TEXT NOT NULL DEFAULT 'moefarm',
    place       INTEGER NOT NULL,
    steps       TEXT NOT NULL,
    structure   TEXT NOT NULL,
    block_m     INTEGER NOT NULL,
    layout      TEXT NOT NULL,
    sum_us      REAL NOT NULL,
    forecast_us REAL NOT NULL,
    finalist    INTEGER NOT NULL CHECK (finalist IN (0, 1)),
    race_us     REAL,
    race_mad    REAL,
    UNIQUE (task, consumer, steps)
) STRICT;
INSERT INTO new_pipeline SELECT p.id, p.task, c.consumer, p.place, p.steps, p.structure, p.block_m, p.layout,
    p.sum_us, p.forecast_us, p.finalist, p.race_us, p.race_mad
    FROM pipeline p JOIN task_consumer c ON c.task = p.task;
DROP TABLE pipeline;
ALTER TABLE new_pipeline RENAME TO pipeline;

CREATE TABLE new_layout_race (
    task        INTEGER NOT NULL REFERENCES task,
    consumer    TEXT NOT NULL DEFAULT 'moefarm',
    layout      TEXT NOT NULL,
    pipeline    INTEGER NOT NULL REFERENCES pipeline,
    us          REAL NOT NULL,
    mad         REAL,
    n           INTEGER NOT NULL DEFAULT 0,
    tries       INTEGER NOT NULL DEFAULT 1,
    unstable    TEXT NOT NULL DEFAULT '',
    ties        TEXT NOT NULL,
    provenance  TEXT NOT NULL,
    PRIMARY KEY (task, consumer, layout)
) STRICT, WITHOUT ROWID;
INSERT INTO new_layout_race SELECT r.task, c.consumer, r.layout, r.pipeline, r.us, r.mad, r.n, r.tries,
    r.unstable, r.ties, r.provenance FROM layout_race r JOIN task_consumer c ON c.task = r.task;
DROP TABLE layout_race;
ALTER TABLE new_layout_race RENAME TO layout_race;

CREATE TABLE new_layout_choice (
    batch       INTEGER NOT NULL REFERENCES batch,
    class       INTEGER NOT NULL REFERENCES device_class,
    layer_model TEXT NOT NULL,
    consumer    TEXT NOT NULL DEFAULT 'moefarm',
    layout      TEXT NOT NULL,
    us          REAL NOT NULL,
    body        TEXT NOT NULL,
    PRIMARY KEY (batch, class, layer_model, consumer)
) STRICT;
INSERT INTO new_layout_choice SELECT l.batch, l.class, l.layer_model,
    coalesce((SELECT json_extract(options, '$.consumer[0]') FROM batch WHERE id = l.batch), 'moefarm'),
    l.layout, l.us, l.body FROM layout_choice l;
DROP TABLE layout_choice;
ALTER TABLE new_layout_choice RENAME TO layout_choice;

CREATE TABLE new_config (
    id          INTEGER PRIMARY KEY,
    task        INTEGER NOT NULL REFERENCES task,
    consumer    TEXT NOT NULL DEFAULT 'moefarm',
    shape       INTEGER NOT NULL REFERENCES shape,
    class       INTEGER NOT NULL REFERENCES device_class,
    model       INTEGER NOT NULL REFERENCES device_model,
    pipeline    INTEGER NOT NULL REFERENCES pipeline,
    us          REAL NOT NULL,
    mad         REAL,
    n           INTEGER NOT NULL DEFAULT 0,
    tries       INTEGER NOT NULL DEFAULT 1,
    unstable    TEXT NOT NULL DEFAULT '',
    us1         REAL NOT NULL,
    us2         REAL NOT NULL,
    err1        REAL NOT NULL,
    err2        REAL NOT NULL,
    ties        TEXT NOT NULL,
    provenance  TEXT NOT NULL,
    at_ms       INTEGER NOT NULL,
    regret      TEXT NOT NULL DEFAULT '[]',
    UNIQUE (task, consumer)
) STRICT;
INSERT INTO new_config SELECT f.id, f.task, c.consumer, f.shape, f.class, f.model, f.pipeline, f.us, f.mad,
    f.n, f.tries, f.unstable, f.us1, f.us2, f.err1, f.err2, f.ties, f.provenance, f.at_ms, f.regret
    FROM config f JOIN task_consumer c ON c.task = f.task;
DROP TABLE config;
ALTER TABLE new_config RENAME TO config;
CREATE INDEX config_key ON config (class, shape, at_ms);

CREATE TABLE new_promotion (
    task        INTEGER NOT NULL REFERENCES task,
    consumer    TEXT NOT NULL DEFAULT 'moefarm',
    known       TEXT NOT NULL,
    known_us    REAL,
    source      TEXT NOT NULL,
    old         INTEGER REFERENCES pipeline,
    new         INTEGER REFERENCES pipeline CHECK (new IS NOT NULL OR decision = 'undecided'),
    new_us      REAL,
    least       REAL NOT NULL,
    decision    TEXT NOT NULL CHECK (decision IN ('pending', 'promoted', 'kept', 'undecided')),
    reason      TEXT NOT NULL,
    at_ms       INTEGER NOT NULL,
    PRIMARY KEY (task, consumer)
) STRICT, WITHOUT ROWID;
INSERT INTO new_promotion SELECT x.task, c.consumer, x.known, x.known_us, x.source, x.old, x.new, x.new_us,
    x.least, x.decision, x.reason, x.at_ms FROM promotion x JOIN task_consumer c ON c.task = x.task;
DROP TABLE promotion;
ALTER TABLE new_promotion RENAME TO promotion;

ALTER TABLE comparison ADD COLUMN consumer TEXT NOT NULL DEFAULT 'moefarm';
UPDATE comparison SET consumer = (SELECT consumer FROM task_consumer c WHERE c.task = comparison.task);

-- Time budgets: a task may measure a part of its candidates only.
ALTER TABLE task ADD COLUMN n_candidates INTEGER NOT NULL DEFAULT 0;
ALTER TABLE task ADD COLUMN probe_ms INTEGER NOT NULL DEFAULT 0;
UPDATE task SET n_candidates = n_steps;
