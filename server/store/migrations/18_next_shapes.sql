-- Migration 18: the shapes that a class lists next are found without going through all that waits there to be measured: a worker hears
-- of them with its units, and compiles for them while it measures.
CREATE INDEX unit_enumerate ON unit (class, priority DESC, id) WHERE state = 'ready' AND kind = 'enumerate';
