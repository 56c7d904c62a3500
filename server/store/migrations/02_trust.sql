-- config: spread and number of the samples of us, and whether us is accepted
ALTER TABLE config ADD COLUMN mad REAL;
ALTER TABLE config ADD COLUMN n INTEGER NOT NULL DEFAULT 0;
ALTER TABLE config ADD COLUMN tries INTEGER NOT NULL DEFAULT 1;
ALTER TABLE config ADD COLUMN unstable TEXT NOT NULL DEFAULT '';
ALTER TABLE layout_race ADD COLUMN n INTEGER NOT NULL DEFAULT 0;
ALTER TABLE layout_race ADD COLUMN tries INTEGER NOT NULL DEFAULT 1;
ALTER TABLE layout_race ADD COLUMN unstable TEXT NOT NULL DEFAULT '';
UPDATE config SET mad = coalesce(
        (SELECT o.mad FROM promotion o WHERE o.task = config.task),
        (SELECT y.mad FROM layout_race y WHERE y.task = config.task AND y.pipeline = config.pipeline),
        (SELECT json_extract(x.extra, '$.race.mad') FROM result x WHERE x.task = config.task
            AND x.step IS NULL AND x.pipeline IS NULL AND x.final = 1
            AND json_extract(x.extra, '$.race') IS NOT NULL ORDER BY x.id DESC LIMIT 1),
        (SELECT x.mad FROM result x WHERE x.task = config.task AND x.step IS NULL AND x.final = 1
            AND x.pipeline = config.pipeline AND x.us IS NOT NULL ORDER BY x.id DESC LIMIT 1)),
    n = coalesce(
        (SELECT o.n FROM promotion o WHERE o.task = config.task),
        (SELECT coalesce(json_array_length(x.extra, '$.fresh'), length(x.samples) / 4) FROM result x
            WHERE x.task = config.task AND x.step IS NULL AND x.final = 1 AND x.pipeline = config.pipeline
            AND x.us IS NOT NULL ORDER BY x.id DESC LIMIT 1), 0);
ALTER TABLE promotion DROP COLUMN mad;
ALTER TABLE promotion DROP COLUMN n;

-- pipeline: comparable times of the race; a race before this version has its plain medians
ALTER TABLE pipeline ADD COLUMN race_us REAL;
ALTER TABLE pipeline ADD COLUMN race_mad REAL;
UPDATE pipeline SET (race_us, race_mad) = (SELECT x.us, x.mad FROM result x WHERE x.task = pipeline.task
    AND x.step IS NULL AND x.final = 1 AND x.pipeline = pipeline.id AND x.us IS NOT NULL
    ORDER BY x.id DESC LIMIT 1);
