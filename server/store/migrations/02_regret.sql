-- Migration 2: how a config's winner fares under other routing profiles than the one it was chosen on.

-- JSON array, one object a profile: {routing, us, best_us, regret, best, tie, status, reason}. us: the winner's median there;
-- best: the pipeline that won there, and best_us its median in the same rounds; regret: us / best_us - 1, 0 when the samples
-- cannot tell the two apart; null where the winner gave no time, and status and reason say why.
ALTER TABLE config ADD COLUMN regret TEXT NOT NULL DEFAULT '[]';
