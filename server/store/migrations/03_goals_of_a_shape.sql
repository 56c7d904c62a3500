-- Migration 3: the goals of a shape, over all batches.

CREATE INDEX goal_shape ON goal (shape);
