-- Migration 14: what is staged on a channel can be taken back before it is approved.

-- Only what may stand in a column changes, and no row: the text of the table is edited, and the schema is read again.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(replace(sql, '''approve'', ''rollback''', '''approve'', ''rollback'', ''unstage'''),
    'to_release  INTEGER NOT NULL REFERENCES release',
    'to_release  INTEGER REFERENCES release CHECK ((to_release IS NULL) = (move = ''unstage''))')
    WHERE type = 'table' AND name = 'channel_move';
PRAGMA writable_schema = RESET;
