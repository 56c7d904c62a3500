-- Migration 7: fair shares between batches of the same priority.

-- The unit's place in the virtual time of its class: how many units its batch, or the batch that is furthest behind, had been
-- granted before it (server/farm/unit.c). Among equally urgent units the lowest goes first.
ALTER TABLE unit ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;

DROP INDEX unit_ready;
CREATE INDEX unit_ready ON unit (state, class, priority DESC, turn, id);
