-- Migration 19: what a batch's own options or the quarantine of its moment leave out is a rejection of that batch: others share the
-- enumeration, and were told reasons that were not theirs. Reasons of options name their batch; those of quarantines do not, and stay
-- everybody's.
CREATE TABLE rejection_19 (             -- why a family offers no step, or a batch tries none, in words
    id          INTEGER PRIMARY KEY,
    enumeration INTEGER NOT NULL REFERENCES enumeration,
    batch       INTEGER REFERENCES batch, -- NULL: of all
    family      TEXT NOT NULL,
    kernel      TEXT NOT NULL,          -- name or pattern
    rule        TEXT NOT NULL,
    reason      TEXT NOT NULL
) STRICT;
INSERT INTO rejection_19 (id, enumeration, batch, family, kernel, rule, reason)
    SELECT j.id, j.enumeration, b.id, j.family, j.kernel, j.rule, j.reason
    FROM rejection j LEFT JOIN batch b ON j.rule IN ('no_fuse', 'policy') AND instr(j.reason, 'batch ') > 0
        AND b.id = CAST(substr(j.reason, instr(j.reason, 'batch ') + 6) AS INTEGER);
DROP TABLE rejection;
ALTER TABLE rejection_19 RENAME TO rejection;
CREATE UNIQUE INDEX rejection_once ON rejection (enumeration, family, kernel, rule, coalesce(batch, 0));
