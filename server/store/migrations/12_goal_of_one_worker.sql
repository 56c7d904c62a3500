-- Migration 12: one worker may measure all of a goal (a batch's option shape_grouped).

-- The only worker that gets units of the goal that measure; NULL: any, and again when that worker has left.
ALTER TABLE goal ADD COLUMN worker INTEGER;
CREATE INDEX goal_worker ON goal (worker) WHERE worker IS NOT NULL;
