-- Migration 16: where forecasts do not tell the weight layouts of a layer model apart, its tasks race over several, and the layout
-- is chosen by what they gave. layout_choice.body says of each layout what its forecasts and its races sum up to, and why it was
-- chosen or not; while its member `pending` is true the races go on, and layout is the forecasts' first.

CREATE TABLE raced (                    -- who won a task's race among the pipelines of one layout
    task        INTEGER NOT NULL REFERENCES task,
    layout      TEXT NOT NULL,
    pipeline    INTEGER NOT NULL REFERENCES pipeline,
    us          REAL NOT NULL,          -- median of its fresh samples
    mad         REAL,
    ties        TEXT NOT NULL,          -- as config.ties
    provenance  TEXT NOT NULL,          -- as config.provenance, of the race
    PRIMARY KEY (task, layout)
) STRICT, WITHOUT ROWID;
