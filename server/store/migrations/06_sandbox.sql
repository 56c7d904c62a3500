-- Migration 6: the limits that a worker's runners are kept within, in words.

ALTER TABLE worker ADD COLUMN sandbox TEXT NOT NULL DEFAULT '';
