-- Migration 15: a task whose known row names no pipeline is decided before anything is measured, when there is no new row yet.

-- Only what may stand in a column changes, and no row: the text of the table is edited, and the schema is read again.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(replace(sql,
    'new         INTEGER NOT NULL REFERENCES pipeline', 'new         INTEGER REFERENCES pipeline CHECK (new IS NOT NULL OR decision = ''undecided'')'),
    'new_us      REAL NOT NULL', 'new_us      REAL')
    WHERE type = 'table' AND name = 'promotion';
PRAGMA writable_schema = RESET;
