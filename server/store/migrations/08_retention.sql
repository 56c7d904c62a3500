-- Migration 8: raw samples are kept for a time only, where moefarmd is told so.

-- The last result whose samples were dropped for their age; those behind it have theirs.
ALTER TABLE farm ADD COLUMN samples_gone INTEGER NOT NULL DEFAULT 0;
