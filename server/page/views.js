// The views by hash route. A view gives its sections: {frame, load, draw, wants, ticks, every}; every: milliseconds that events
// leave between two fetches.
import { ago, el, legend, percent, progress, span, stackedBar, us } from '/page/charts.js';
import { ladderPlot, timelinePlot } from '/page/plots.js';
import { taskView, pipelineView, stepView } from '/page/task.js';
import { releasesView } from '/page/releases.js';

export const routes = [
  [/^\/$/, homeView],
  [/^\/batch\/(\d+)$/, batchView],
  [/^\/task\/(\d+)$/, taskView],
  [/^\/step\/(\d+)$/, stepView],
  [/^\/pipeline\/(\d+)$/, pipelineView],
  [/^\/shapes$/, shapesView],
  [/^\/workers$/, workersView],
  [/^\/quarantine$/, quarantineView],
  [/^\/releases$/, releasesView],
];

export const box = (heading, extra) => (body) => el('section', {}, el('header', {}, el('h2', { text: heading }), extra || null), body);

const tones = { done: 'good', ok: 'good', tuned: 'good', tuning: 'busy', open: 'busy', busy: 'busy', probing: 'busy', racing: 'busy', comparing: 'busy', ranking: 'busy', enumerating: 'busy', failed: 'bad', lost: 'bad', waiting: 'warn', draining: 'warn' };
export const badge = (text) => el('span', { class: 'badge ' + (tones[text] || ''), text });

export const tile = (name, value, small) => el('div', { class: 'tile' }, el('dt', { text: name }), el('dd', {}, value, small ? [' ', el('small', { text: small })] : null));

/* --- batches ---------------------------------------------------------------------------------------------- */

function batchProgress(b) {
  const tasks = Math.max(1, b.tasks), open = b.tasks - b.done - b.failed;
  const part = b.steps > 0 && open > 0 ? Math.max(0, open / tasks * (b.measured / b.steps)) * 0.9 : 0;
  const label = `${b.done} of ${b.tasks} tasks done` + (b.failed ? `, ${b.failed} failed` : '') + `; ${b.measured} of ${b.steps} steps measured`;
  return progress([{ share: b.done / tasks, cls: 'done' }, { share: b.failed / tasks, cls: 'failed' }, { share: b.state === 'open' ? part : 0, cls: '' }], label);
}

function homeView() {
  return [
    {
      frame: box('Batches'),
      ticks: true,
      wants: (e) => ['batch', 'task', 'config'].includes(e.kind),
      async load(get) {
        const page = await get('batches?limit=50');
        // Only open batches have an estimate, and only these few are asked for it.
        const open = page.items.filter((b) => b.state === 'open').slice(0, 8);
        await Promise.all(open.map(async (b) => { b.more = await get('batches/' + b.id); }));
        return page;
      },
      draw: drawBatches,
    },
    { frame: box('Workers', el('a', { href: '#/workers', text: 'all of them' })), wants: (e) => e.kind === 'worker', ticks: true, load: (get) => get('workers?limit=12'), draw: (page) => drawWorkers(page.items) },
  ];
}

function drawBatches(page) {
  if (!page.items.length) return el('p', { class: 'note', text: 'No batch yet. Submit one with: moefarm submit untuned_fmoe.csv' });
  return el('div', { class: 'scroll' }, el('table', {},
    el('thead', {}, el('tr', {}, el('th', { text: 'Batch' }), el('th', { class: 'wide', text: 'State' }), el('th', { text: 'Progress' }), el('th', { class: 'n', text: 'Tasks' }), el('th', { class: 'n wide', text: 'Steps' }), el('th', { class: 'n', text: 'Left' }), el('th', { class: 'n wide', text: 'Submitted' }))),
    el('tbody', {}, page.items.map((b) => el('tr', { 'data-batch': b.id },
      el('td', {}, el('a', { href: '#/batch/' + b.id, text: b.name || 'batch ' + b.id }), el('div', { class: 'small', text: '#' + b.id + (b.more && b.more.waiting.length ? ' · ' + b.more.waiting[0].reason : '') })),
      el('td', { class: 'wide' }, badge(b.state)),
      el('td', { class: 'grow' }, batchProgress(b)),
      el('td', { class: 'n' }, `${b.done}/${b.tasks}`, b.failed ? el('div', { class: 'small', text: b.failed + ' failed' }) : null),
      el('td', { class: 'n wide measured', text: `${b.measured}/${b.steps}` }),
      el('td', { class: 'n', text: b.more && b.more.eta_s !== null ? span(b.more.eta_s) : '–' }),
      el('td', { class: 'n wide', text: ago(b.created_ms) })))),
  ));
}

/* --- one batch -------------------------------------------------------------------------------------------- */

function batchView([id], redraw) {
  const mine = (e) => e.batch === id;
  return [
    { wants: mine, ticks: true, load: (get) => get('batches/' + id), draw: (b) => drawBatchHead(b, redraw) },
    { frame: box('Steps measured', el('span', { class: 'small', text: 'bars: a second, in red those refused; line: in all; dots: when pipelines raced' })), wants: mine, every: 10000, load: (get) => get(`batches/${id}/timeline`), draw: (t) => timelinePlot(t) || el('p', { class: 'note', text: 'Nothing yet.' }) },
    { frame: box('Tasks', el('span', { class: 'small', text: 'a task is one shape on one device class' })), wants: mine, load: (get, getAll) => getAll(`batches/${id}/tasks`), draw: drawTasks },
  ];
}

// What changes something; a refusal (a token that may only read, say) is said.
async function change(path) {
  const response = await fetch('/api/v1/' + path, { method: 'POST' });
  if (!response.ok) alert((await response.json()).detail);
}

function drawBatchHead(b, redraw) {
  const options = Object.entries(b.options || {}).filter(([k]) => k !== 'name').map(([k, v]) => `${k} ${Array.isArray(v) ? v.join(', ') || (k === 'classes' ? 'any' : 'none') : v}`);
  const cancel = b.state === 'open' ? el('button', { text: 'Cancel batch', onclick: async () => {
    if (confirm(`Cancel batch ${b.id}? What is measured is kept.`)) {
      await change(`batches/${b.id}/cancel`);
      redraw();
    }
  } }) : null;
  return [
    el('p', { class: 'crumb' }, el('a', { href: '#/', text: 'Batches' }), ` / #${b.id}`),
    el('h1', { text: b.name || 'batch ' + b.id }),
    el('p', { class: 'sub', text: options.join(' · ') }),
    b.waiting.map((w) => el('div', { class: 'alert' }, el('p', { text: `${w.tasks} task${w.tasks === 1 ? '' : 's'} waiting${w.class ? ' for ' + w.class : ''}: ${w.reason}` }))),
    b.errors && b.errors.length ? el('details', { class: 'alert' }, el('summary', { text: `${b.errors.length} row${b.errors.length === 1 ? '' : 's'} of the submission left out` }), b.errors.map((e) => el('p', { text: `${e.line ? 'line ' + e.line + ', ' : ''}${e.at}: ${e.message}` }))) : null,
    el('dl', { class: 'tiles' },
      tile('State', badge(b.state)),
      tile('Tasks done', `${b.done}`, `of ${b.tasks}` + (b.failed ? `, ${b.failed} failed` : '')),
      tile('Steps measured', `${b.measured}`, `of ${b.steps}`),
      tile(b.state === 'open' ? 'Left' : 'Took', b.state === 'open' ? (b.eta_s === null ? 'unknown' : span(b.eta_s)) : b.ended_ms ? span((b.ended_ms - b.created_ms) / 1000) : '–', 'submitted ' + ago(b.created_ms))),
    el('section', {}, batchProgress(b), el('p', { class: 'small' }, el('a', { href: `/api/v1/export/tuned_fmoe.csv?batch=${b.id}`, text: 'tuned_fmoe.csv of this batch' }), ' · ', el('a', { href: `/api/v1/export/left_out?batch=${b.id}`, text: 'what it leaves out' }), cancel ? [' · ', cancel] : null),
      b.layouts.map((l) => el('p', { class: 'small' }, `${layerName(l.layer_model)} — ${l.class}: weight layout `, el('span', { class: 'mono', text: l.layout }), layoutWhy(l), l.free_gain ? `; a layout for each token count would gain ${percent(l.free_gain)}` : ''))),
  ];
}

function layoutWhy(l) {
  if (l.pending) return ', the first by forecast: several are being raced';
  const chosen = l.layouts.find((one) => one.chosen);
  return chosen && chosen.reason ? ': it ' + chosen.reason : '';
}

// A layer model is a shape's row without its token count.
const layerColumns = ['model_dim', 'inter_dim', 'expert', 'topk', 'act_type', 'dtype', 'q_dtype_a', 'q_dtype_w', 'q_type', 'use_g1u1', 'doweight_stage1'];
const layerName = (text) => shapeName(Object.fromEntries(text.split(',').map((value, i) => [layerColumns[i], /^\d+$/.test(value) ? Number(value) : value])));

export function shapeName(s) {
  const short = (t) => t.replace(/^(torch|QuantType|ActivationType)\./, '');
  const q = s.q_type === 'QuantType.No' ? short(s.dtype) : `${short(s.q_dtype_a)} × ${short(s.q_dtype_w)}, ${short(s.q_type)}`;
  return `H ${s.model_dim} · I ${s.inter_dim} · ${s.expert} experts, top ${s.topk} · ${q} · ${short(s.act_type)}` + (s.doweight_stage1 ? ' · weight in stage 1' : '');
}

function drawTasks(tasks) {
  const rows = [];
  let last = '';
  for (const g of [...tasks].sort((a, b) => (a.layer_model + a.class).localeCompare(b.layer_model + b.class) || a.shape.token - b.shape.token)) {
    const key = g.layer_model + g.class;
    if (key !== last) rows.push(el('tr', { class: 'sep' }, el('td', { colspan: 6, text: shapeName(g.shape) + (g.class ? ' — ' + g.class : '') })));
    last = key;
    rows.push(el('tr', { 'data-task': g.id },
      el('td', { class: 'n' }, el('a', { href: '#/task/' + g.id, text: String(g.shape.token), 'aria-label': `task ${g.id}: ${g.shape.token} tokens` })),
      el('td', {}, badge(g.state)),
      el('td', { class: 'grow' }, progress([{ share: g.steps ? g.measured / g.steps : 0, cls: g.state === 'done' ? 'done' : g.state === 'failed' ? 'failed' : '' }], `${g.measured} of ${g.steps} steps measured`, true), el('span', { class: 'small measured', text: `${g.measured}/${g.steps} steps` })),
      el('td', { class: 'n' }, g.us !== null ? el('a', { href: '#/pipeline/' + g.pipeline, text: us(g.us) }) : '–'),
      el('td', { class: 'wide mono', text: g.winner ? g.winner.join('  ') : g.reason })));
  }
  if (tasks.more) rows.push(el('tr', {}, el('td', { colspan: 6, class: 'small', text: 'There are more; the API has them all.' })));
  return el('div', { class: 'scroll' }, el('table', {}, el('thead', {}, el('tr', {}, el('th', { class: 'n', text: 'Tokens' }), el('th', { text: 'State' }), el('th', { text: 'Steps' }), el('th', { class: 'n', text: 'Best' }), el('th', { class: 'wide', text: 'Winner' }))), el('tbody', {}, rows)));
}

/* --- shapes ----------------------------------------------------------------------------------------------- */

function shapesView() {
  return [
    { load: async () => 0, draw: () => [el('h1', { text: 'Shapes' }), el('p', { class: 'sub', text: 'All that was ever submitted. A time is that of the latest task with a winner on its device class.' })] },
    { wants: (e) => e.kind === 'config' || e.kind === 'batch', every: 10000, load: (get, getAll) => getAll('shapes'), draw: drawShapes },
  ];
}

// The latest task on each class, one with a winner before one without.
function latest(tasks) {
  const best = new Map();
  for (const g of tasks) {
    const name = g.class || 'waiting', known = best.get(name);
    if (!known || (known.us === null && g.us !== null)) best.set(name, g);
  }
  return best;
}

function drawShapes(list) {
  if (!list.length) return el('p', { class: 'note', text: 'No shape yet.' });
  const ladders = new Map();
  for (const s of list) ladders.set(s.layer_model, [...(ladders.get(s.layer_model) || []), { token: s.shape.token, shape: s.shape, tasks: latest(s.tasks) }]);
  return [...[...ladders.values()].map((rows) => {
    rows.sort((a, b) => a.token - b.token);
    const classes = [...new Set(rows.flatMap((r) => [...r.tasks.keys()]))].sort();
    const cell = (g) => (!g ? '–' : g.us !== null ? [el('a', { href: '#/task/' + g.id, text: us(g.us) }), el('div', { class: 'small', text: 'batch ' + g.batch })] : el('a', { href: '#/task/' + g.id, title: g.reason }, badge(g.state)));
    return el('section', { 'data-ladder': rows[0].shape.model_dim },
      el('header', {}, el('h2', { text: shapeName(rows[0].shape) })),
      ladderPlot(rows.map((r) => r.token), classes.map((c) => [c, rows.map((r) => (r.tasks.has(c) ? r.tasks.get(c).us : null))])),
      el('div', { class: 'scroll' }, el('table', {},
        el('thead', {}, el('tr', {}, el('th', { class: 'least', text: 'Tokens' }), classes.map((c) => el('th', { class: 'n', text: c })))),
        el('tbody', {}, rows.map((r) => el('tr', {}, el('td', { class: 'n', text: String(r.token) }), classes.map((c) => el('td', { class: 'n' }, cell(r.tasks.get(c))))))))));
  }), list.more ? el('p', { class: 'small', text: 'There are more; the API has them all.' }) : null];
}

/* --- workers ---------------------------------------------------------------------------------------------- */

const phases = ['timing', 'verify', 'data', 'load', 'wait'];

function drawWorkers(workers) {
  if (!workers.length) return el('p', { class: 'note', text: 'No worker has come yet. Start one with: moefarm-worker' });
  return [
    legend(phases.map((p) => ['c-' + p, p])),
    el('div', { class: 'cards' }, workers.map((w) => el('div', { class: 'cardbox', 'data-worker': w.id },
      el('h3', {}, el('span', { class: 'mono', text: w.name }), badge(w.state)),
      el('p', { class: 'small' }, `${w.class} · ${w.model}${w.simulated ? ' · simulated' : ''} · ${w.host}${w.sandbox ? ' · runners within: ' + w.sandbox : ''}`),
      stackedBar(phases.map((p) => ({ value: w.busy[p] || 0, cls: 'c-' + p, title: `${p} ${percent(w.busy[p] || 0)}` })), 1, `time of ${w.name}: ` + phases.map((p) => `${p} ${percent(w.busy[p] || 0)}`).join(', '), true),
      el('p', { class: 'mono', text: w.step || (w.state === 'busy' ? 'preparing' : '—') }),
      el('p', { class: 'small', text: `${percent((w.busy.timing || 0) + (w.busy.verify || 0))} in timing and verifying · ${w.n_results} results · ${w.n_deaths} runner deaths · seen ${ago(w.seen_ms)}` })))),
  ];
}

function workersView() {
  return [
    { load: async () => 0, draw: () => [el('h1', { text: 'Workers' }), el('p', { class: 'sub', text: 'One per device. The bar is how its time was spent since it joined.' })] },
    { frame: box('All workers'), wants: (e) => e.kind === 'worker', ticks: true, load: (get, getAll) => getAll('workers'), draw: drawWorkers },
  ];
}

/* --- quarantine ------------------------------------------------------------------------------------------- */

function quarantineView(args, redraw) {
  const draw = (items) => !items.length ? el('p', { class: 'note', text: 'No kernel is in quarantine.' }) : el('ul', { class: 'why' }, items.map((q) => el('li', {},
    el('span', {}, el('span', { class: 'badge bad', text: q.family }), el('div', { class: 'small', text: q.class })),
    el('div', {},
      el('p', { class: 'mono', text: q.name }),
      el('p', { text: q.reason }),
      q.strikes.map((s) => el('p', { class: 'small' }, `${s.status} on ${s.worker} at task `, el('a', { href: '#/task/' + s.task, text: s.task }), `, ${ago(s.at_ms)}: ${s.reason}`)),
      el('p', {}, el('button', { text: 'Revive', onclick: async () => {
        await change(`quarantine/${q.kernel}/revive?class=${encodeURIComponent(q.class)}`);
        redraw();
      } }))))));
  return [
    { load: async () => 0, draw: () => [el('h1', { text: 'Quarantine' }), el('p', { class: 'sub', text: 'Kernels that killed two runners are not run any more, until somebody revives them.' })] },
    { frame: box('Kernels'), wants: (e) => e.kind === 'quarantine', load: (get, getAll) => getAll('quarantine'), draw },
  ];
}
