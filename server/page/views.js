// Views by hash route. A view returns its sections: {frame, load, draw, wants, ticks, every}.
//   frame: wraps the body; load(get, getAll): fetches the data; draw(data): returns elements
//   wants(event): selects events that refresh the section; ticks: redraw every 15 s
//   every: minimum time between two fetches caused by events, in ms
import { ago, el, legend, note, percent, progress, small, span, stackedBar, us } from '/page/charts.js';
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

export const box = (heading, extra) => (body) =>
  el('section', {}, el('header', {}, el('h2', { text: heading }), extra || null), body);

const tones = {
  done: 'good', ok: 'good', tuned: 'good', tuning: 'busy', open: 'busy', busy: 'busy', probing: 'busy',
  racing: 'busy', comparing: 'busy', ranking: 'busy', enumerating: 'busy', failed: 'bad', lost: 'bad',
  waiting: 'warn', draining: 'warn',
};
export const badge = (text) => el('span', { class: 'badge ' + (tones[text] || ''), text });

export const tile = (name, value, small) => el('div', { class: 'tile' },
  el('dt', { text: name }), el('dd', {}, value, small ? [' ', el('small', { text: small })] : null));

const heading = (title, about) => [el('h1', { text: title }), el('p', { class: 'sub', text: about })];
const truncated = () => 'The list is truncated; the API has all entries.';

/* --- batches -------------------------------------------------------------------------------------------- */

function batchProgress(b) {
  const tasks = Math.max(1, b.tasks), open = b.tasks - b.done - b.failed;
  const part = b.steps > 0 && open > 0 ? Math.max(0, open / tasks * (b.measured / b.steps)) * 0.9 : 0;
  const failed = b.failed ? `, ${b.failed} failed` : '';
  const label = `${b.done} of ${b.tasks} tasks done${failed}; ${b.measured} of ${b.steps} steps measured`;
  return progress([
    { share: b.done / tasks, cls: 'done' },
    { share: b.failed / tasks, cls: 'failed' },
    { share: b.state === 'open' ? part : 0, cls: '' },
  ], label);
}

function homeView() {
  return [
    {
      frame: box('Batches'),
      ticks: true,
      wants: (e) => ['batch', 'task', 'config'].includes(e.kind),
      async load(get) {
        const page = await get('batches?limit=50');
        // Estimates need one request per batch, so fetch them for the first eight open batches only.
        const open = page.items.filter((b) => b.state === 'open').slice(0, 8);
        await Promise.all(open.map(async (b) => { b.more = await get('batches/' + b.id); }));
        return page;
      },
      draw: drawBatches,
    },
    {
      frame: box('Workers', el('a', { href: '#/workers', text: 'all workers' })),
      wants: (e) => e.kind === 'worker',
      ticks: true,
      load: (get) => get('workers?limit=12'),
      draw: (page) => drawWorkers(page.items),
    },
  ];
}

function drawBatches(page) {
  if (!page.items.length) return note('No batch yet. Submit one with: moefarm submit untuned_fmoe.csv');
  const waiting = (b) => (b.more && b.more.waiting.length ? ' · ' + b.more.waiting[0].reason : '');
  return el('div', { class: 'scroll' }, el('table', {},
    el('thead', {}, el('tr', {},
      el('th', { text: 'Batch' }),
      el('th', { class: 'wide', text: 'State' }),
      el('th', { text: 'Progress' }),
      el('th', { class: 'n', text: 'Tasks' }),
      el('th', { class: 'n wide', text: 'Steps' }),
      el('th', { class: 'n', text: 'Time left' }),
      el('th', { class: 'n wide', text: 'Submitted' }))),
    el('tbody', {}, page.items.map((b) => el('tr', { 'data-batch': b.id },
      el('td', {},
        el('a', { href: '#/batch/' + b.id, text: b.name || 'batch ' + b.id }),
        el('div', { class: 'small', text: '#' + b.id + waiting(b) })),
      el('td', { class: 'wide' }, badge(b.state)),
      el('td', { class: 'grow' }, batchProgress(b)),
      el('td', { class: 'n' },
        `${b.done}/${b.tasks}`, b.failed ? el('div', { class: 'small', text: b.failed + ' failed' }) : null),
      el('td', { class: 'n wide measured', text: `${b.measured}/${b.steps}` }),
      el('td', { class: 'n', text: b.more && b.more.eta_s !== null ? span(b.more.eta_s) : '–' }),
      el('td', { class: 'n wide', text: ago(b.created_ms) })))),
  ));
}

/* --- one batch ------------------------------------------------------------------------------------------ */

function batchView([id], redraw) {
  const mine = (e) => e.batch === id;
  const colours = 'bars: steps per second, rejected ones in red; line: total; dots: races';
  return [
    { wants: mine, ticks: true, load: (get) => get('batches/' + id), draw: (b) => drawBatchHead(b, redraw) },
    {
      frame: box('Steps measured', small(colours)),
      wants: mine,
      every: 10000,
      load: (get) => get(`batches/${id}/timeline`),
      draw: (t) => timelinePlot(t) || note('No step measured yet.'),
    },
    {
      frame: box('Tasks', small('a task is one shape on one device class')),
      wants: mine,
      load: (get, getAll) => getAll(`batches/${id}/tasks`),
      draw: drawTasks,
    },
  ];
}

// Sends a request that changes state, and shows the error if the request is refused, for example because the
// token has role read.
async function change(path) {
  const response = await fetch('/api/v1/' + path, { method: 'POST' });
  if (!response.ok) alert((await response.json()).detail);
}

const optionText = ([k, v]) =>
  `${k} ${Array.isArray(v) ? v.join(', ') || (k === 'classes' ? 'any' : 'none') : v}`;

function drawWaiting(w) {
  const tasks = `${w.tasks} task${w.tasks === 1 ? '' : 's'}`;
  const text = `${tasks} waiting${w.class ? ' for ' + w.class : ''}: ${w.reason}`;
  return el('div', { class: 'alert' }, el('p', { text }));
}

function drawErrors(errors) {
  const line = (e) => `${e.line ? 'line ' + e.line + ', ' : ''}${e.at}: ${e.message}`;
  return el('details', { class: 'alert' },
    el('summary', { text: `${errors.length} problem${errors.length === 1 ? '' : 's'} in the submission` }),
    errors.map((e) => el('p', { text: line(e) })));
}

function drawLayout(l) {
  const gain = l.free_gain ? `; one layout per token count would gain ${percent(l.free_gain)}` : '';
  return el('p', { class: 'small' },
    `${layerName(l.layer_model)} — ${l.class}: weight layout `,
    el('span', { class: 'mono', text: l.layout }), layoutReason(l), gain);
}

function batchTime(b) {
  if (b.state === 'open') return b.eta_s === null ? 'unknown' : span(b.eta_s);
  return b.ended_ms ? span((b.ended_ms - b.created_ms) / 1000) : '–';
}

function drawBatchHead(b, redraw) {
  const options = Object.entries(b.options || {}).filter(([k]) => k !== 'name').map(optionText);
  const cancel = b.state === 'open' ? el('button', { text: 'Cancel batch', onclick: async () => {
    if (confirm(`Cancel batch ${b.id}? Results measured so far are kept.`)) {
      await change(`batches/${b.id}/cancel`);
      redraw();
    }
  } }) : null;
  return [
    el('p', { class: 'crumb' }, el('a', { href: '#/', text: 'Batches' }), ` / #${b.id}`),
    el('h1', { text: b.name || 'batch ' + b.id }),
    el('p', { class: 'sub', text: options.join(' · ') }),
    b.waiting.map(drawWaiting),
    b.errors && b.errors.length ? drawErrors(b.errors) : null,
    el('dl', { class: 'tiles' },
      tile('State', badge(b.state)),
      tile('Tasks done', `${b.done}`, `of ${b.tasks}` + (b.failed ? `, ${b.failed} failed` : '')),
      tile('Steps measured', `${b.measured}`, b.candidates > b.steps
        ? `of ${b.candidates} candidates` : `of ${b.steps}`),
      tile(b.state === 'open' ? 'Time left' : 'Duration', batchTime(b), 'submitted ' + ago(b.created_ms))),
    el('section', {},
      batchProgress(b),
      el('p', { class: 'small' },
        el('a', {
          href: `/api/v1/export/tuned_fmoe.csv?batch=${b.id}`, text: 'tuned_fmoe.csv of this batch',
        }),
        ' · ',
        el('a', { href: `/api/v1/export/left_out?batch=${b.id}`, text: 'rows left out' }),
        cancel ? [' · ', cancel] : null),
      b.layouts.map(drawLayout)),
  ];
}

function layoutReason(l) {
  if (l.pending) return ', best by forecast; several layouts are being raced';
  const chosen = l.layouts.find((one) => one.chosen);
  return chosen && chosen.reason ? ': it ' + chosen.reason : '';
}

// A layer model is a shape without its token count.
const layerColumns = [
  'model_dim', 'inter_dim', 'expert', 'topk', 'act_type', 'dtype', 'q_dtype_a', 'q_dtype_w', 'q_type',
  'use_g1u1', 'doweight_stage1',
];
const layerName = (text) => shapeName(Object.fromEntries(text.split(',').map((value, i) =>
  [layerColumns[i], /^\d+$/.test(value) ? Number(value) : value])));

export function shapeName(s) {
  const short = (t) => t.replace(/^(torch|QuantType|ActivationType)\./, '');
  const q = s.q_type === 'QuantType.No'
    ? short(s.dtype)
    : `${short(s.q_dtype_a)} × ${short(s.q_dtype_w)}, ${short(s.q_type)}`;
  return `H ${s.model_dim} · I ${s.inter_dim} · ${s.expert} experts, top ${s.topk} · ${q} · ` +
    short(s.act_type) + (s.doweight_stage1 ? ' · weight in stage 1' : '');
}

const unstableBadge = (g) =>
  (g.unstable ? el('span', { class: 'badge bad', title: g.unstable, text: 'unstable' }) : null);

function drawTask(g) {
  const bar = {
    share: g.steps ? g.measured / g.steps : 0,
    cls: g.state === 'done' ? 'done' : g.state === 'failed' ? 'failed' : '',
  };
  return el('tr', { 'data-task': g.id },
    el('td', { class: 'n' }, el('a', {
      href: '#/task/' + g.id, text: String(g.shape.token),
      'aria-label': `task ${g.id}: ${g.shape.token} tokens`,
    })),
    el('td', {}, badge(g.state)),
    el('td', { class: 'grow' },
      progress([bar], `${g.measured} of ${g.steps} steps measured`, true),
      el('span', { class: 'small measured', text: `${g.measured}/${g.steps} steps` })),
    el('td', { class: 'n' },
      g.us !== null ? el('a', { href: '#/pipeline/' + g.pipeline, text: us(g.us) }) : '–',
      unstableBadge(g)),
    el('td', { class: 'wide mono', text: g.winner ? g.winner.join('  ') : g.reason }));
}

function drawTasks(tasks) {
  const rows = [];
  const key = (g) => g.layer_model + g.class;
  let last = '';
  for (const g of [...tasks].sort((a, b) => key(a).localeCompare(key(b)) || a.shape.token - b.shape.token)) {
    if (key(g) !== last) {
      const text = shapeName(g.shape) + (g.class ? ' — ' + g.class : '');
      rows.push(el('tr', { class: 'sep' }, el('td', { colspan: 6, text })));
    }
    last = key(g);
    rows.push(drawTask(g));
  }
  if (tasks.more) rows.push(el('tr', {}, el('td', { colspan: 6, class: 'small', text: truncated() })));
  return el('div', { class: 'scroll' }, el('table', {},
    el('thead', {}, el('tr', {},
      el('th', { class: 'n', text: 'Tokens' }),
      el('th', { text: 'State' }),
      el('th', { text: 'Steps' }),
      el('th', { class: 'n', text: 'Best' }),
      el('th', { class: 'wide', text: 'Winner' }))),
    el('tbody', {}, rows)));
}

/* --- shapes --------------------------------------------------------------------------------------------- */

function shapesView() {
  const about = 'All submitted shapes. Each time is from the latest task with a winner on its device class.';
  return [
    { load: async () => 0, draw: () => heading('Shapes', about) },
    {
      wants: (e) => e.kind === 'config' || e.kind === 'batch',
      every: 10000,
      load: (get, getAll) => getAll('shapes'),
      draw: drawShapes,
    },
  ];
}

// Latest task per device class; tasks with a winner take precedence. The list is sorted from latest to
// oldest.
function latest(tasks) {
  const best = new Map();
  for (const g of tasks) {
    const name = g.class || 'waiting', known = best.get(name);
    if (!known || (known.us === null && g.us !== null)) best.set(name, g);
  }
  return best;
}

function drawShapeCell(g) {
  if (!g) return '–';
  const href = '#/task/' + g.id;
  return g.us !== null
    ? [el('a', { href, text: us(g.us) }), unstableBadge(g),
      el('div', { class: 'small', text: 'batch ' + g.batch })]
    : el('a', { href, title: g.reason }, badge(g.state));
}

function drawLadder(rows) {
  rows.sort((a, b) => a.token - b.token);
  const classes = [...new Set(rows.flatMap((r) => [...r.tasks.keys()]))].sort();
  const times = (c) => rows.map((r) => (r.tasks.has(c) ? r.tasks.get(c).us : null));
  return el('section', { 'data-ladder': rows[0].shape.model_dim },
    el('header', {}, el('h2', { text: shapeName(rows[0].shape) })),
    ladderPlot(rows.map((r) => r.token), classes.map((c) => [c, times(c)])),
    el('div', { class: 'scroll' }, el('table', {},
      el('thead', {}, el('tr', {},
        el('th', { class: 'least', text: 'Tokens' }), classes.map((c) => el('th', { class: 'n', text: c })))),
      el('tbody', {}, rows.map((r) => el('tr', {},
        el('td', { class: 'n', text: String(r.token) }),
        classes.map((c) => el('td', { class: 'n' }, drawShapeCell(r.tasks.get(c))))))))));
}

function drawShapes(list) {
  if (!list.length) return note('No shape yet.');
  const ladders = new Map();
  for (const s of list) {
    const row = { token: s.shape.token, shape: s.shape, tasks: latest(s.tasks) };
    ladders.set(s.layer_model, [...(ladders.get(s.layer_model) || []), row]);
  }
  return [
    ...[...ladders.values()].map(drawLadder),
    list.more ? el('p', { class: 'small', text: truncated() }) : null,
  ];
}

/* --- workers -------------------------------------------------------------------------------------------- */

const phases = ['timing', 'verify', 'data', 'load', 'wait'];

function drawWorker(w) {
  const shares = phases.map((p) => `${p} ${percent(w.busy[p] || 0)}`);
  const parts = phases.map((p, i) => ({ value: w.busy[p] || 0, cls: 'c-' + p, title: shares[i] }));
  const simulated = w.simulated ? ' · simulated' : '', sandbox = w.sandbox ? ' · sandbox: ' + w.sandbox : '';
  const measuring = percent((w.busy.timing || 0) + (w.busy.verify || 0));
  return el('div', { class: 'cardbox', 'data-worker': w.id },
    el('h3', {}, el('span', { class: 'mono', text: w.name }), badge(w.quarantined ? 'quarantined' : w.state)),
    el('p', { class: 'small' }, `${w.class} · ${w.model}${simulated} · ${w.host}${sandbox}`),
    w.quarantined ? note(`Quarantined: ${w.quarantined}. It gets no units.`) : null,
    ...w.refused_families.map((f) => note(`Could not load family ${f.name}: ${f.why}`)),
    stackedBar(parts, 1, `time of ${w.name}: ` + shares.join(', '), true),
    el('p', { class: 'mono', text: w.step || (w.state === 'busy' ? 'preparing' : '—') }),
    el('p', {
      class: 'small',
      text: `${measuring} of the time in timing and verification · ${w.n_results} results · ` +
        `${w.n_deaths} runner deaths · seen ${ago(w.seen_ms)}`,
    }));
}

function drawWorkers(workers) {
  if (!workers.length) return note('No worker has connected yet. Start one with: moefarm-worker');
  return [
    legend(phases.map((p) => ['c-' + p, p])),
    el('div', { class: 'cards' }, workers.map(drawWorker)),
  ];
}

function workersView() {
  const about = 'One worker per device. The bar shows how the worker has spent its time since it connected.';
  return [
    { load: async () => 0, draw: () => heading('Workers', about) },
    {
      frame: box('All workers'),
      wants: (e) => e.kind === 'worker',
      ticks: true,
      load: (get, getAll) => getAll('workers'),
      draw: drawWorkers,
    },
  ];
}

/* --- quarantine ----------------------------------------------------------------------------------------- */

function quarantineView(args, redraw) {
  const revive = async (q) => {
    await change(`quarantine/${q.kernel}/revive?class=${encodeURIComponent(q.class)}`);
    redraw();
  };
  const drawStrike = (s) => el('p', { class: 'small' },
    `${s.status} on ${s.worker} in task `, el('a', { href: '#/task/' + s.task, text: s.task }),
    `, ${ago(s.at_ms)}: ${s.reason}`);
  const drawKernel = (q) => el('li', {},
    el('span', {},
      el('span', { class: 'badge bad', text: q.family }), el('div', { class: 'small', text: q.class })),
    el('div', {},
      el('p', { class: 'mono', text: q.name }),
      el('p', { text: q.reason }),
      q.strikes.map(drawStrike),
      el('p', {}, el('button', { text: 'Revive', onclick: () => revive(q) }))));
  const draw = (items) => (items.length
    ? el('ul', { class: 'why' }, items.map(drawKernel))
    : note('No kernel is in quarantine.'));
  const about = 'Kernels that have killed two runners. They are not run again until you revive them.';
  return [
    { load: async () => 0, draw: () => heading('Quarantine', about) },
    {
      frame: box('Kernels'),
      wants: (e) => e.kind === 'quarantine',
      load: (get, getAll) => getAll('quarantine'),
      draw,
    },
  ];
}
