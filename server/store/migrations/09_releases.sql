-- Migration 9: exports that were frozen, and the channels that deployment pulls them by.

-- A frozen export. Nothing of it is ever changed: who reads it holds the bytes against their hashes.
CREATE TABLE release (
    id          INTEGER PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,   -- for people, and what makes freezing twice harmless
    created_by  TEXT NOT NULL,          -- name of the token that asked; "": none was needed
    created_ms  INTEGER NOT NULL,
    filters     TEXT NOT NULL,          -- JSON, of the export
    sha256      TEXT NOT NULL CHECK (length(sha256) = 64), -- of csv
    manifest_sha256 TEXT NOT NULL CHECK (length(manifest_sha256) = 64),
    n_rows      INTEGER NOT NULL CHECK (n_rows > 0),
    n_left_out  INTEGER NOT NULL,
    -- Last, for SQLite goes through what is in front of a column to get to it, and hosts ask for hashes all day
    csv         BLOB NOT NULL,
    manifest    BLOB NOT NULL           -- JSON (docs/releases.md)
) STRICT;
CREATE INDEX release_sha256 ON release (sha256);

CREATE TABLE release_row (              -- where a row of it comes from
    release     INTEGER NOT NULL REFERENCES release,
    row         INTEGER NOT NULL CHECK (row > 0), -- behind the header, from 1
    key         TEXT NOT NULL,          -- the fourteen key values
    us          REAL NOT NULL,          -- as the table has it
    names       TEXT NOT NULL,          -- of its pipeline: "family:step|…"
    config      INTEGER NOT NULL REFERENCES config,
    task        INTEGER NOT NULL REFERENCES task,       -- whose raw samples are kept from then on
    pipeline    INTEGER NOT NULL REFERENCES pipeline,
    PRIMARY KEY (release, row),
    UNIQUE (release, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX release_row_task ON release_row (task);

CREATE TRIGGER release_stays BEFORE UPDATE ON release BEGIN SELECT raise(ABORT, 'a release is never changed'); END;
CREATE TRIGGER release_kept BEFORE DELETE ON release BEGIN SELECT raise(ABORT, 'a release is never deleted'); END;
CREATE TRIGGER release_row_stays BEFORE UPDATE ON release_row BEGIN SELECT raise(ABORT, 'a release is never changed'); END;
CREATE TRIGGER release_row_kept BEFORE DELETE ON release_row BEGIN SELECT raise(ABORT, 'a release is never deleted'); END;

-- ─stage─► staged ─approve─► current ─rollback─► the one that was approved before it
CREATE TABLE channel (
    id          INTEGER PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,
    staged      INTEGER REFERENCES release,
    current     INTEGER REFERENCES release,      -- what is pulled; NULL: nothing was approved yet
    approval    INTEGER REFERENCES channel_move, -- that current stands by
    created_ms  INTEGER NOT NULL
) STRICT;

CREATE TABLE channel_move (             -- every change of a channel, for ever
    id          INTEGER PRIMARY KEY,
    channel     INTEGER NOT NULL REFERENCES channel,
    move        TEXT NOT NULL CHECK (move IN ('stage', 'approve', 'rollback')),
    from_release INTEGER REFERENCES release,     -- stage: staged before; else current before
    to_release  INTEGER NOT NULL REFERENCES release,
    below       INTEGER REFERENCES channel_move, -- of approve: the approval that stood before; a rollback goes back to it
    moved_by    TEXT NOT NULL,          -- as release.created_by
    reason      TEXT NOT NULL,          -- in words, may be ""
    at_ms       INTEGER NOT NULL
) STRICT;
CREATE INDEX channel_move_channel ON channel_move (channel, id);
CREATE TRIGGER channel_move_stays BEFORE UPDATE ON channel_move BEGIN SELECT raise(ABORT, 'a move is never changed'); END;
CREATE TRIGGER channel_move_kept BEFORE DELETE ON channel_move BEGIN SELECT raise(ABORT, 'a move is never deleted'); END;
