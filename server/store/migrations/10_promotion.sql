-- Migration 10: a known row is replaced only by a comparison: the state that a task is in meanwhile, the kind of its units, and
-- what was decided and why.

-- Only what may stand in a column changes, and no row: the texts of the two tables are edited, and the schema is read again.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, '''racing'', ''done''', '''racing'', ''comparing'', ''done''')
    WHERE type = 'table' AND name = 'task';
UPDATE sqlite_schema SET sql = replace(sql, '''probe'', ''race''', '''probe'', ''race'', ''compare''')
    WHERE type = 'table' AND name = 'unit';
PRAGMA writable_schema = RESET;

CREATE TABLE known (                    -- what a batch was told is deployed: rows of its baseline, of its own shapes
    batch       INTEGER NOT NULL REFERENCES batch,
    shape       INTEGER NOT NULL REFERENCES shape,
    class       INTEGER NOT NULL REFERENCES device_class,
    pipeline    TEXT NOT NULL,          -- "family:step|family:step"; "": the row names none, and cannot be run
    us          REAL NOT NULL,          -- as the row has it: of another day, for people
    line        INTEGER NOT NULL,       -- of the baseline
    PRIMARY KEY (batch, shape, class)
) STRICT, WITHOUT ROWID;

-- Of a task whose batch promotes what is improved only. pending ─decide─► promoted, kept or undecided. The task's config is the
-- row that stands: the race's winner when promoted, the known row as it was measured now when kept. While it is pending, and when
-- it stays undecided, the config is nobody's row: no export has it.
CREATE TABLE promotion (
    task        INTEGER PRIMARY KEY REFERENCES task,
    known       TEXT NOT NULL,          -- "family:step|family:step"; "": there is none, or it names no pipeline
    known_us    REAL,                   -- as it was known; NULL: nothing was
    source      TEXT NOT NULL,          -- "line 7 of the baseline", "batch 3"; "": nothing is known
    old         INTEGER REFERENCES pipeline, -- the known row as a pipeline of this task; NULL: it is none
    new         INTEGER NOT NULL REFERENCES pipeline, -- the race's winner
    new_us      REAL NOT NULL,
    least       REAL NOT NULL,          -- the least effect: 0.03 is three percent
    decision    TEXT NOT NULL CHECK (decision IN ('pending', 'promoted', 'kept', 'undecided')),
    reason      TEXT NOT NULL,
    mad         REAL,                   -- of the known row's samples that the config's time is the median of, when kept
    n           INTEGER,
    at_ms       INTEGER NOT NULL
) STRICT;

CREATE TABLE comparison (               -- the known row (old) against the race's winner (new) on one device
    unit        INTEGER PRIMARY KEY REFERENCES unit,
    task        INTEGER NOT NULL REFERENCES task,
    worker      INTEGER NOT NULL REFERENCES worker,
    verdict     TEXT NOT NULL,          -- SAME, FASTER, SLOWER, AMBIGUOUS; "": one of the two gave no time
    low         REAL,                   -- new / old - 1 by rounds: its interval, and the median
    mid         REAL,
    high        REAL,
    n           INTEGER NOT NULL,       -- rounds that both ran
    old_us      REAL,
    new_us      REAL,
    old_status  TEXT NOT NULL,
    new_status  TEXT NOT NULL,
    old_reason  TEXT NOT NULL,
    new_reason  TEXT NOT NULL,
    at_ms       INTEGER NOT NULL
) STRICT;
CREATE INDEX comparison_task ON comparison (task);
