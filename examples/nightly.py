#!/usr/bin/env python3
"""A nightly job: tunes a model, freezes a release, and reports how it differs from the channel's.

    MOEFARM_URL=https://farm:8443 MOEFARM_TOKEN_FILE=submit.token nightly.py config.json nightly report.md

Give the model's config.json, a channel and the report. The job stages a release on the channel if a row has
other kernels than the channel's current release. An administrator approves it (`moefarm release approve`).
More arguments are token counts (default: those that libfmoe looks up). Exit status: 1 if a task failed."""
import sys

from moefarm import Client


def main(model: str, channel: str, report: str, *tokens: str) -> int:
    farm = Client()
    layer = farm.model_layer(model, tp=1)
    receipt = farm.submit(layer.rows([int(n) for n in tokens]), name=layer.name, promote="improved")
    batch = farm.wait(receipt.batch, progress=lambda b: print(f"{b.done} of {b.tasks} tasks"))
    failed = [f"- failed: {t.shape['token']} tokens: {t.reason}" for t in farm.tasks(batch.id, "failed")]
    release = farm.freeze(batch=batch.id)
    known = farm.channel(channel)
    lines = [f"# {layer.name}: release {release.name}, {release.rows} rows", *failed]
    if known and known.current:
        diff = farm.diff(release.release, against=known.current.id)
        lines += [f"- {row.change:+.1%}, {row.new_us:.1f} us: {row.key}" for row in diff.changed]
        is_new = bool(diff.added) or any(row.old_names != row.new_names for row in diff.changed)
    if not known or not known.current or is_new:
        farm.stage(channel, release.release, reason=f"nightly batch {batch.id}")
    with open(report, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
