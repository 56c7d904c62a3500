-- Migration 3: the tasks of a shape, over all batches.

CREATE INDEX task_shape ON task (shape);
