-- Migration 12: one worker may measure all of a task (a batch's option shape_grouped).

-- The only worker that gets units of the task that measure; NULL: any, and again when that worker has left.
ALTER TABLE task ADD COLUMN worker INTEGER;
CREATE INDEX task_worker ON task (worker) WHERE worker IS NOT NULL;
