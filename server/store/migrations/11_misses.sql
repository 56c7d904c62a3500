-- Migration 11: what production looked up and did not find.

CREATE TABLE miss (
    id          INTEGER PRIMARY KEY,
    gfx         TEXT NOT NULL,          -- of the device that missed: a class of which no worker need ever have come
    cu_num      INTEGER NOT NULL CHECK (cu_num > 0),
    row         TEXT NOT NULL,          -- the shape, as shape.row
    count       INTEGER NOT NULL CHECK (count > 0), -- look-ups that missed
    n_sources   INTEGER NOT NULL,       -- that were told apart
    first_ms    INTEGER NOT NULL,
    last_ms     INTEGER NOT NULL,
    UNIQUE (gfx, cu_num, row)
) STRICT;
CREATE INDEX miss_count ON miss (count DESC, id);

CREATE TABLE miss_source (              -- who missed it, up to a bound
    miss        INTEGER NOT NULL REFERENCES miss ON DELETE CASCADE,
    source      TEXT NOT NULL,
    PRIMARY KEY (miss, source)
) STRICT, WITHOUT ROWID;

CREATE TABLE miss_report (              -- the latest reports, so that one that is sent again counts once
    id          INTEGER PRIMARY KEY,
    idempotency_key TEXT NOT NULL UNIQUE,
    body_hash   TEXT NOT NULL,
    receipt     TEXT NOT NULL,          -- JSON answer, given again for the same key
    at_ms       INTEGER NOT NULL
) STRICT;
