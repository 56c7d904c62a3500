-- Migration 13: where the weights of what production missed lie.

-- "w1=row w2=row", as the latest report said it; "": it said nothing, and what is tuned chooses.
ALTER TABLE miss ADD COLUMN layout TEXT NOT NULL DEFAULT '';
