-- Migration 17: a worker that looks for a task that nobody works on finds its first unit without going through those of all the
-- others: with a thousand workers they are what it would meet, at every lease.

-- Of a ready unit: another unit of its task is leased. The triggers below keep it so, whatever ends or begins a lease.
ALTER TABLE unit ADD COLUMN busy INTEGER NOT NULL DEFAULT 0 CHECK (busy IN (0, 1));
UPDATE unit SET busy = 1 WHERE state = 'ready' AND EXISTS (SELECT 1 FROM unit o WHERE o.task = unit.task AND o.state = 'leased');
CREATE INDEX unit_free ON unit (class, priority DESC, turn, id) WHERE state = 'ready' AND busy = 0;

CREATE TRIGGER unit_joins AFTER INSERT ON unit
WHEN new.state = 'ready' AND EXISTS (SELECT 1 FROM unit WHERE task = new.task AND state = 'leased') BEGIN
    UPDATE unit SET busy = 1 WHERE id = new.id;
END;

-- The first lease of a task; the others find its ready units as they are to be.
CREATE TRIGGER unit_leased AFTER UPDATE OF state ON unit
WHEN new.state = 'leased' AND old.state <> 'leased'
    AND NOT EXISTS (SELECT 1 FROM unit WHERE task = new.task AND state = 'leased' AND id <> new.id) BEGIN
    UPDATE unit SET busy = 1 WHERE task = new.task AND state = 'ready' AND busy = 0;
END;

-- The last lease of a task, or a unit that is ready again beside others that are leased.
CREATE TRIGGER unit_left AFTER UPDATE OF state ON unit
WHEN old.state = 'leased' AND new.state <> 'leased'
    AND (new.state = 'ready' OR NOT EXISTS (SELECT 1 FROM unit WHERE task = new.task AND state = 'leased')) BEGIN
    UPDATE unit SET busy = EXISTS (SELECT 1 FROM unit WHERE task = new.task AND state = 'leased')
    WHERE task = new.task AND state = 'ready';
END;
