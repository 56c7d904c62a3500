// Views of a task (ranked pipelines, race, steps, rejections), of a step and of a pipeline, with all samples.
import { ago, el, legend, median, note, opClass, percent, small, stackedBar, us } from '/page/charts.js';
import { raceRow, samplesPlot } from '/page/plots.js';
import { badge, shapeName, tile } from '/page/views.js';

const toPipeline = (id, text) => el('a', { href: '#/pipeline/' + id, text });
const stepHref = (id, task) => `#/step/${id}?task=${task}`;
const covered = (step) => (step.covers === '-' ? 'conversion' : step.covers);

const box = (heading, extra) => (body) =>
  el('section', {}, el('header', {}, el('h2', { text: heading }), extra || null), body);

const statuses = [
  'any status', 'ok', 'pending', 'slow', 'wrong', 'implausible', 'crash', 'hang', 'no_memory', 'no_compile',
  'unsupported', 'quarantined',
];

export function taskView([id], redraw) {
  let limit = 12;
  const more = () => { limit = Math.min(1000, limit * 4); redraw(); };
  const mine = (e) => e.task === id;
  const status = el('select', { 'aria-label': 'status' },
    statuses.map((t) => el('option', { value: t === 'any status' ? '' : t, text: t })));
  const kernel = el('input', {
    type: 'search', placeholder: 'kernel, such as tile_s1_*', 'aria-label': 'kernel name; wildcards: * and ?',
  });
  const steps = {
    frame: box('Steps', el('div', { class: 'filters' }, status)),
    wants: mine,
    load: (get, getAll) => getAll(`tasks/${id}/steps` + (status.value ? '?status=' + status.value : '')),
    draw: (list) => drawSteps(list, id),
  };
  const rejections = {
    frame: box('Rejected kernels', el('div', { class: 'filters' }, kernel)),
    wants: mine,
    load: (get) => get(`tasks/${id}/rejections?limit=50` +
      (kernel.value ? '&kernel=' + encodeURIComponent(kernel.value) : '')),
    draw: (page) => drawRejections(page, id),
  };
  status.addEventListener('change', () => redraw(steps));
  kernel.addEventListener('input', () => redraw(rejections));
  return [
    { wants: mine, load: (get) => get('tasks/' + id), draw: drawHead },
    {
      frame: box('Ranked pipelines', small('time per step; raced pipelines first, by measured time')),
      wants: mine,
      load: async (get) => ({
        task: await get('tasks/' + id), page: await get(`tasks/${id}/pipelines?limit=${limit}`),
      }),
      draw: ({ task, page }) => drawRanked(page, task, more),
    },
    {
      frame: box('Race', small('row: pipeline; column: round; dot: one call of the layer')),
      wants: mine,
      load: (get) => get(`tasks/${id}/race`),
      draw: drawRace,
    },
    steps,
    rejections,
  ];
}

/* --- head ----------------------------------------------------------------------------------------------- */

function drawTies(ties) {
  const shown = ties.slice(0, 6).map((t, i) => [i ? ' ' : null, toPipeline(t, '#' + t)]);
  return ties.length ? [shown, ties.length > 6 ? ' …' : null] : 'none';
}

function drawRegret(r) {
  const name = 'Regret under ' + r.routing;
  if (r.regret === null) return tile(name, r.status, r.reason);
  return tile(name, toPipeline(r.best, r.tie ? 'none' : '+' + percent(r.regret)),
    `${us(r.us)}, best ${us(r.best_us)}`);
}

/* The winner of each consumer: what a team would gain by changing kernels. */
function drawConsumers(list) {
  const cells = (c) => c.us === null
    ? [el('td', { colspan: 3, text: c.reason || 'not decided yet' })]
    : [el('td', { text: us(c.us) }), el('td', { text: c.ratio.toFixed(2) + 'x' }),
      el('td', { class: 'small', text: c.winner.join(' | ') })];
  return el('div', { class: 'scroll' }, el('table', { class: 'consumers' },
    el('thead', {}, el('tr', {},
      ['Consumer', 'Time', 'Of the fastest', 'Winner'].map((t) => el('th', { text: t })))),
    el('tbody', {}, list.map((c) => el('tr', {}, el('td', { text: c.consumer }), cells(c))))));
}

function drawHead(g) {
  const c = g.config, p = g.promotion;
  const tokens = `${g.shape.token} token${g.shape.token === 1 ? '' : 's'}`;
  const provenance = c && c.provenance ? Object.entries(c.provenance).map(([k, v]) => `${k} ${v}`) : null;
  return [
    el('p', { class: 'crumb' },
      el('a', { href: '#/', text: 'Batches' }), ' / ',
      el('a', { href: '#/batch/' + g.batch, text: '#' + g.batch }), ' / task ' + g.id),
    el('h1', { text: tokens + (g.class ? ` on ${g.class}` : '') }),
    el('p', { class: 'sub', text: shapeName(g.shape) }),
    g.reason
      ? el('div', { class: 'alert' + (g.state === 'failed' ? ' bad' : '') }, el('p', { text: g.reason }))
      : null,
    c && c.unstable
      ? el('div', { class: 'alert bad' },
        el('p', {}, el('span', { class: 'badge bad', text: 'unstable' }), ' ' + c.unstable))
      : null,
    p
      ? el('div', { class: 'alert promotion' },
        el('p', { text: `${p.decision}: ${p.reason}` + (p.source ? ` (known from ${p.source})` : '') }))
      : null,
    el('dl', { class: 'tiles' },
      tile('State', badge(g.state), g.model || ''),
      tile('Steps measured', `${g.measured}`, g.candidates > g.steps
        ? `of ${g.candidates} candidates, ${percent(g.measured / g.candidates)}`
        : `of ${g.steps}`),
      c ? [
        tile('Layer', toPipeline(c.pipeline, us(c.us)),
          (c.mad !== null ? `± ${us(c.mad)}, ` : '') + `${c.n} samples`),
        tile('Up to stage 1', toPipeline(c.pipeline, us(c.us1)), `rest: ${us(c.us2)}`),
        tile('Mismatch', toPipeline(c.pipeline, percent(c.err2)), `stage 1: ${percent(c.err1)}`),
        tile('Statistically tied', drawTies(c.ties),
          c.race ? `${c.race.rounds} rounds, ${c.race.calls} calls` : ''),
        c.regret.map(drawRegret),
      ] : null),
    provenance ? el('p', { class: 'small', text: provenance.join(' · ') }) : null,
    g.consumers.length > 1 ? drawConsumers(g.consumers) : null,
  ];
}

/* --- ranked pipelines ----------------------------------------------------------------------------------- */

const shortName = (name) => name.split(':').slice(1).join(':') || name;

const ended = ['done', 'failed', 'cancelled'];

function drawRanked(page, g, more) {
  const task = g.id;
  if (!page.items.length) {
    return note(ended.includes(g.state)
      ? 'No ranking: the task ended before its pipelines were ranked.'
      : 'Not ranked yet: not all steps are measured.');
  }
  const sum = (p) => p.ops.reduce((t, o) => t + (o.us || 0), 0);
  const whole = Math.max(...page.items.map((p) => Math.max(sum(p), p.us || p.forecast_us)));
  const seen = new Map();
  for (const p of page.items)
    for (const o of p.ops) seen.set(opClass(o.covers) + o.covers, [opClass(o.covers), covered(o)]);
  const parts = (p) => p.ops.map((o) => ({
    value: o.us || 0, cls: opClass(o.covers), text: us(o.us), href: stepHref(o.step, task),
    title: `${o.covers}: ${o.name}, ${us(o.us)}`,
  }));
  const label = (p, i) => `pipeline ${i + 1}: ` + p.ops.map((o) => `${o.covers} ${us(o.us)}`).join(', ');
  return [
    legend([...seen.values()]),
    el('ol', { class: 'ranked' }, page.items.map((p, i) => el('li', {
      class: p.winner ? 'winner' : '', 'data-pipeline': p.id,
    },
    el('span', { class: 'place', text: String(i + 1) }),
    stackedBar(parts(p), whole, label(p, i)),
    el('span', { class: 'time' },
      toPipeline(p.id, us(p.us !== null ? p.us : p.forecast_us)),
      el('small', { text: p.us !== null ? `forecast ${us(p.forecast_us)}` : 'forecast' }),
      p.reported ? el('small', { text: `reported ${us(p.reported.us)}` }) : null),
    el('span', { class: 'name' },
      p.winner ? el('span', { class: 'badge good', text: 'winner' }) : null,
      p.reported && p.reported.unstable
        ? el('span', { class: 'badge bad', title: p.reported.unstable, text: 'unstable' })
        : null,
      p.other_layout ? el('span', { class: 'badge warn', text: `other weight layout: ${p.layout}` }) : null,
      p.tie && !p.winner
        ? el('span', { class: 'badge good', text: 'statistically tied with the winner' })
        : null,
      p.dropped_at
        ? el('span', { class: 'badge', text: `dropped after round ${p.dropped_at}` })
        : p.finalist && p.us === null ? el('span', { class: 'badge busy', text: 'finalist' }) : null,
      el('span', { class: 'mono', text: p.names.map(shortName).join('  ›  ') }))))),
    el('p', {
      class: 'small',
      text: 'Times are those of the race, paired by round. The reported time is that of the winner\'s rerun.',
    }),
    page.next ? el('p', {}, el('button', { text: 'Show more', onclick: more })) : null,
  ];
}

/* --- race ----------------------------------------------------------------------------------------------- */

function drawRace(race) {
  const rows = race.pipelines.filter((p) => p.samples.length);
  if (!rows.length) return note('No race.');
  const winner = rows.find((p) => p.id === race.winner) || rows[0];
  const time = (p) => (p.us !== null ? p.us : median(p.samples));
  const lead = time(winner);
  const all = rows.flatMap((p) => p.samples).filter((v) => v !== null).sort((a, b) => a - b);
  const scale = {
    low: all[0], high: all[Math.floor((all.length - 1) * 0.99)], lead,
    rounds: Math.max(...rows.map((p) => p.samples.length)),
  };
  const order = [winner, ...rows.filter((p) => p !== winner)];
  return [
    el('div', { class: 'racegrid' }, order.map((p) => {
      p.tie = (race.ties || []).includes(p.id);
      p.winner = p === winner;
      const m = time(p);
      const difference = (m > lead ? '+' : '') + ((m / lead - 1) * 100).toFixed(1) + '%';
      const verdict = p.winner ? 'winner' : p.tie ? 'tied' : difference;
      const label = small(verdict);
      const names = p.names.map(shortName).filter((n) => !/^(sort|combine)/.test(n)).join(' › ');
      return [
        el('div', { class: 'who mono', title: p.names.join('  ') }, toPipeline(p.id, names || String(p.id))),
        el('a', { href: '#/pipeline/' + p.id, 'aria-label': `samples of pipeline ${p.id}` },
          raceRow(p, scale, (text) => { label.textContent = text || verdict; })),
        el('div', { class: 'what' },
          toPipeline(p.id, us(m)), label,
          p.dropped_at ? el('span', { class: 'small dropped', text: `dropped at ${p.dropped_at}` }) : null),
      ];
    })),
    el('p', {
      class: 'small',
      text: `From left to right: rounds 1 to ${scale.rounds}. ` +
        `Dashed line: median of the winner, ${us(lead)}.` +
        (race.us ? ` Rerun of the winner: ${us(race.us)} ± ${us(race.mad)}.` : ''),
    }),
  ];
}

/* --- steps and rejections ------------------------------------------------------------------------------- */

const tone = (s) => (s === 'ok' ? 'good' : s === 'pending' ? '' : s === 'slow' ? 'warn' : 'bad');

function drawSteps(list, task) {
  if (!list.length) return note('No steps.');
  const rows = [...list].sort((a, b) => a.covers.localeCompare(b.covers) || (a.us ?? 1e18) - (b.us ?? 1e18));
  const shown = rows.slice(0, 60);
  const best = new Map();
  for (const s of rows) if (s.status === 'ok' && !(best.get(s.covers) <= s.us)) best.set(s.covers, s.us);
  const toBest = (s) =>
    (s.us !== null && best.has(s.covers) ? (s.us / best.get(s.covers)).toFixed(2) + '×' : '–');
  return [
    el('div', { class: 'scroll' }, el('table', {},
      el('thead', {}, el('tr', {},
        el('th', { class: 'wide', text: 'Covers' }),
        el('th', { text: 'Step' }),
        el('th', { text: 'Status' }),
        el('th', { class: 'n', text: 'Time' }),
        el('th', { class: 'n wide', text: 'Versus best' }),
        el('th', { class: 'n wide', text: 'Worst row error' }))),
      el('tbody', {}, shown.map((s) => el('tr', {},
        el('td', { class: 'small wide', text: covered(s) }),
        el('td', { class: 'mono' }, el('a', { href: stepHref(s.id, task), text: s.name })),
        el('td', {}, el('span', { class: 'badge ' + tone(s.status), text: s.status, title: s.reason })),
        el('td', { class: 'n' },
          s.us === null ? '–' : el('a', { href: stepHref(s.id, task), text: us(s.us) }),
          s.mad !== null ? el('div', { class: 'small', text: '± ' + us(s.mad) }) : null),
        el('td', { class: 'n wide', text: toBest(s) }),
        el('td', { class: 'n wide', text: s.row_err !== null ? s.row_err.toExponential(1) : '–' })))))),
    rows.length > shown.length || list.more
      ? el('p', {
        class: 'small',
        text: `The first ${shown.length} of ${rows.length}${list.more ? ' or more' : ''} steps. ` +
          'Use the filter to narrow the list; the API has all steps.',
      })
      : null,
  ];
}

function drawRejections(page, task) {
  if (!page.items.length) return note('No kernel was rejected.');
  return [
    el('ul', { class: 'why' }, page.items.map((r) => el('li', {},
      el('span', {}, el('span', { class: 'badge ' + (r.step === null ? '' : tone(r.rule)), text: r.rule })),
      el('div', {},
        el('p', { class: 'mono' }, r.step === null
          ? `${r.family}: ${r.kernel}`
          : el('a', { href: stepHref(r.step, task), text: `${r.family}: ${r.kernel}` })),
        el('p', { class: 'reason', text: r.reason }))))),
    page.next
      ? el('p', { class: 'small', text: 'The list is truncated. Narrow the name; the API has all entries.' })
      : null,
  ];
}

/* --- samples -------------------------------------------------------------------------------------------- */

function drawResult(r, task) {
  const status = el('span', { class: 'badge ' + tone(r.status), text: r.status });
  const mad = r.mad !== null ? small('  ± ' + us(r.mad)) : null;
  const late = r.late ? el('span', { class: 'badge warn', text: 'late: not used for decisions' }) : null;
  const routing = r.extra && r.extra.routing
    ? el('span', { class: 'badge', text: 'routing ' + r.extra.routing })
    : null;
  const details = ago(r.at_ms) +
    (r.row_err !== null ? ` · worst row error ${r.row_err.toExponential(2)}` : '') +
    (r.err !== null ? ` · mismatch ${percent(r.err)}` : '') +
    (r.extra && r.extra.canary ? ` · canary ${r.extra.canary.toFixed(2)}× its minimum` : '');
  return el('section', {},
    el('header', {},
      el('h2', {}, us(r.us), mad),
      el('span', {}, late, ' ', routing, ' ', status)),
    r.reason ? el('p', { class: 'reason', text: r.reason }) : null,
    r.samples.length ? samplesPlot(r.samples) : null,
    el('p', { class: 'small' },
      `${r.samples.length} samples · worker ${r.worker} · ` +
        `unit ${r.unit}, attempt ${r.attempt}, message ${r.seq} · `,
      task ? null : [el('a', { href: '#/task/' + r.task, text: 'task ' + r.task }), ' · '], details),
    r.samples.length
      ? el('details', {},
        el('summary', { text: 'All samples' }), el('p', { class: 'mono', text: r.samples.join('  ') }))
      : null);
}

// Draws a step or a pipeline: its description, then all its results.
function drawResults(heading, names, about, list, task) {
  return [
    el('p', { class: 'crumb' },
      el('a', { href: '#/', text: 'Batches' }),
      task ? [' / ', el('a', { href: '#/task/' + task, text: 'task ' + task })] : null, ' / ' + heading),
    el('h1', { class: 'mono' }, names.flatMap((name, i) => [i ? ' › ' : null, name])),
    about.map((text) => el('p', { class: 'sub', text })),
    el('p', { class: 'sub', text: `${list.length} result${list.length === 1 ? '' : 's'} with all samples` }),
    list.map((r) => drawResult(r, task)),
  ];
}

export function stepView([id, ...rest], redraw) {
  const query = rest.query || new URLSearchParams(location.hash.split('?')[1]);
  const task = Number(query.get('task')) || 0;
  const load = async (get, getAll) => ({
    step: await get('steps/' + id), list: await getAll(`steps/${id}/results` + (task ? '?task=' + task : '')),
  });
  const draw = ({ step, list }) => drawResults('step ' + id, [`${step.family}:${step.name}`], [
    `${covered(step)} · ${step.shape.token} token${step.shape.token === 1 ? '' : 's'} on ${step.class} · ` +
      shapeName(step.shape),
    step.needs.length ? `inputs: ${step.needs.join(', ')} · outputs: ${step.gives.join(', ')}` : '',
  ].filter(Boolean), list, task);
  return [{ load, draw, wants: (e) => e.task === task }];
}

export function pipelineView([id]) {
  const load = async (get, getAll) => ({
    pipeline: await get('pipelines/' + id), list: await getAll(`pipelines/${id}/results`),
  });
  const draw = ({ pipeline: p, list }) => drawResults('pipeline ' + id,
    p.ops.map((o) => el('a', { href: stepHref(o.step, p.task), text: o.name })),
    [`${p.structure} · block_m ${p.block_m || 'any'} · ${p.layout} · forecast ${us(p.forecast_us)}`],
    list, p.task);
  return [{ load, draw, wants: (e) => e.kind === 'config' }];
}
