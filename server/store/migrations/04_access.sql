-- Migration 4: who may come in. A secret itself is nowhere: a row has the hash of it.

CREATE TABLE token (
    id          INTEGER PRIMARY KEY,
    role        TEXT NOT NULL CHECK (role IN ('read', 'submit', 'admin', 'worker')),
    name        TEXT NOT NULL,          -- whose it is, for people
    hash        BLOB NOT NULL UNIQUE CHECK (length(hash) = 32), -- of the secret; worker: of the public half
    created_ms  INTEGER NOT NULL,
    expires_ms  INTEGER NOT NULL,       -- 0: never
    used_ms     INTEGER,                -- worker: when it brought a key in; there is no second time
    revoked_ms  INTEGER
) STRICT;

CREATE TABLE worker_key (               -- a worker is its key: one that stands for each name
    id          INTEGER PRIMARY KEY,
    worker      TEXT NOT NULL,
    public_key  BLOB NOT NULL UNIQUE CHECK (length(public_key) = 32),
    token       INTEGER NOT NULL UNIQUE REFERENCES token, -- that brought it in
    enrolled_ms INTEGER NOT NULL,
    revoked_ms  INTEGER
) STRICT;
CREATE UNIQUE INDEX worker_key_worker ON worker_key (worker) WHERE revoked_ms IS NULL;
