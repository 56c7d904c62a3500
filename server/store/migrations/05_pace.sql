-- Migration 5: when a batch measured what, by seconds, kept up with each result: what is asked of it must not grow with the
-- number of results.

CREATE TABLE pace (
    batch       INTEGER NOT NULL REFERENCES batch,
    at_s        INTEGER NOT NULL,       -- of result.at_ms, the worker's clock
    measured    INTEGER NOT NULL,       -- steps that were decided
    refused     INTEGER NOT NULL,       -- those of them that are neither ok nor slow
    raced       INTEGER NOT NULL,       -- pipelines that raced
    PRIMARY KEY (batch, at_s)
) STRICT, WITHOUT ROWID;

INSERT INTO pace
    SELECT g.batch, r.at_ms / 1000, count(r.step), sum(r.step IS NOT NULL AND r.status NOT IN ('ok', 'slow')), count(r.pipeline)
    FROM result r JOIN task g ON g.id = r.task WHERE r.final = 1 GROUP BY 1, 2;

CREATE TRIGGER pace_made AFTER INSERT ON result WHEN new.final = 1 BEGIN
    INSERT INTO pace VALUES (
        (SELECT batch FROM task WHERE id = new.task), new.at_ms / 1000, new.step IS NOT NULL,
        new.step IS NOT NULL AND new.status NOT IN ('ok', 'slow'), new.pipeline IS NOT NULL)
    ON CONFLICT (batch, at_s) DO UPDATE SET measured = measured + excluded.measured,
        refused = refused + excluded.refused, raced = raced + excluded.raced;
END;

CREATE TRIGGER pace_unmade AFTER UPDATE OF final ON result WHEN old.final = 1 AND new.final = 0 BEGIN
    UPDATE pace SET measured = measured - (old.step IS NOT NULL),
        refused = refused - (old.step IS NOT NULL AND old.status NOT IN ('ok', 'slow')),
        raced = raced - (old.pipeline IS NOT NULL)
    WHERE batch = (SELECT batch FROM task WHERE id = old.task) AND at_s = old.at_ms / 1000;
END;
