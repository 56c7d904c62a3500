-- config: spread and number of the samples of us, and whether us is accepted
ALTER TABLE config ADD COLUMN mad REAL;
ALTER TABLE config ADD COLUMN n INTEGER NOT NULL DEFAULT 0;
ALTER TABLE config ADD COLUMN tries INTEGER NOT NULL DEFAULT 1;
ALTER TABLE config ADD COLUMN unstable TEXT NOT NULL DEFAULT '';
ALTER TABLE layout_race ADD COLUMN n INTEGER NOT NULL DEFAULT 0;
ALTER TABLE layout_race ADD COLUMN tries INTEGER NOT NULL DEFAULT 1;
ALTER TABLE layout_race ADD COLUMN unstable TEXT NOT NULL DEFAULT '';
UPDATE config SET mad = coalesce(
        (SELECT o.mad FROM promotion o WHERE o.task = config.task),
        (SELECT y.mad FROM layout_race y WHERE y.task = config.task AND y.pipeline = config.pipeline),
        (SELECT json_extract(x.extra, '$.race.mad') FROM result x WHERE x.task = config.task
            AND x.step IS NULL AND x.pipeline IS NULL AND x.final = 1
            AND json_extract(x.extra, '$.race') IS NOT NULL ORDER BY x.id DESC LIMIT 1),
        (SELECT x.mad FROM result x WHERE x.task = config.task AND x.step IS NULL AND x.final = 1
            AND x.pipeline = config.pipeline AND x.us IS NOT NULL ORDER BY x.id DESC LIMIT 1)),
    n = coalesce(
        (SELECT o.n FROM promotion o WHERE o.task = config.task),
        (SELECT coalesce(json_array_length(x.extra, '$.fresh'), length(x.samples) / 4) FROM result x
            WHERE x.task = config.task AND x.step IS NULL AND x.final = 1 AND x.pipeline = config.pipeline
            AND x.us IS NOT NULL ORDER BY x.id DESC LIMIT 1), 0);
ALTER TABLE promotion DROP COLUMN mad;
ALTER TABLE promotion DROP COLUMN n;

-- pipeline: comparable times of the race; a race before this version has its plain medians
ALTER TABLE pipeline ADD COLUMN race_us REAL;
ALTER TABLE pipeline ADD COLUMN race_mad REAL;
UPDATE pipeline SET (race_us, race_mad) = (SELECT x.us, x.mad FROM result x WHERE x.task = pipeline.task
    AND x.step IS NULL AND x.final = 1 AND x.pipeline = pipeline.id AND x.us IS NOT NULL
    ORDER BY x.id DESC LIMIT 1);

-- Who measured what: the statistics of one worker do not apply to other workers until a second one confirms
-- them.

-- A simulated and a real device of one name are two models. SQLite cannot change a UNIQUE constraint, so the
-- table is created again. Foreign keys are checked at the end of the transaction, when the rows are back.
PRAGMA defer_foreign_keys = ON;
CREATE TEMP TABLE old_model AS SELECT id, class, name, simulated, body FROM device_model;
DROP TABLE device_model;
CREATE TABLE device_model (
    id          INTEGER PRIMARY KEY,
    class       INTEGER NOT NULL REFERENCES device_class,
    name        TEXT NOT NULL,
    simulated   INTEGER NOT NULL CHECK (simulated IN (0, 1)),
    body        TEXT NOT NULL,
    UNIQUE (class, name, simulated)
) STRICT;
INSERT INTO device_model SELECT id, class, name, simulated, body FROM old_model;
DROP TABLE old_model;

ALTER TABLE worker ADD COLUMN device TEXT NOT NULL DEFAULT '{}';
ALTER TABLE worker ADD COLUMN quarantined TEXT NOT NULL DEFAULT '';
ALTER TABLE worker ADD COLUMN n_undone INTEGER NOT NULL DEFAULT 0;
UPDATE worker SET device = (SELECT body FROM device_model m WHERE m.id = worker.model);

-- Of ended attempts, the worker is not known. Their late results are refused.
CREATE TABLE unit_grant (
    unit        INTEGER NOT NULL REFERENCES unit,
    attempt     INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    worker      INTEGER NOT NULL REFERENCES worker,
    PRIMARY KEY (unit, attempt)
) STRICT, WITHOUT ROWID;
INSERT INTO unit_grant SELECT id, attempt, epoch, worker FROM unit WHERE worker IS NOT NULL;

-- The old ratios do not name their workers. They are learned again.
DROP TABLE structure_ratio;
CREATE TABLE structure_ratio (
    model       INTEGER NOT NULL REFERENCES device_model,
    structure   TEXT NOT NULL,
    batch       INTEGER NOT NULL REFERENCES batch,
    worker      INTEGER NOT NULL REFERENCES worker,
    n           INTEGER NOT NULL,
    log_ratio   REAL NOT NULL,
    log_spread  REAL NOT NULL,
    PRIMARY KEY (model, structure, batch, worker)
) STRICT, WITHOUT ROWID;

-- An enumeration knows its worker, so that the lists of a worker that is no longer trusted are made again.
CREATE TEMP TABLE old_enumeration AS SELECT id, class, shape, revision, complete FROM enumeration;
DROP TABLE enumeration;
CREATE TABLE enumeration (
    id          INTEGER PRIMARY KEY,
    class       INTEGER NOT NULL REFERENCES device_class,
    shape       INTEGER NOT NULL REFERENCES shape,
    revision    TEXT NOT NULL,
    complete    INTEGER NOT NULL DEFAULT 0 CHECK (complete IN (0, 1)),
    worker      INTEGER REFERENCES worker,
    dropped     INTEGER NOT NULL DEFAULT 0,
    UNIQUE (class, shape, revision, dropped)
) STRICT;
INSERT INTO enumeration (id, class, shape, revision, complete)
    SELECT id, class, shape, revision, complete FROM old_enumeration;
DROP TABLE old_enumeration;
