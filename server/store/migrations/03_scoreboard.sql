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
