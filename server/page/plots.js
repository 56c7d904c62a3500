// Plots, drawn by uPlot (vendor/). Each plot has a text description. Colours are read from the style sheet at
// every drawing, so that plots follow a switch between light and dark mode.
import { el, median, us } from '/page/charts.js';

const colour = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A plot is drawn once its box is in the page and has a width, redrawn when the width changes, and destroyed
// when the box has left the page.
const plots = new Map();
const sizes = new ResizeObserver((entries) => {
  for (const { target: box, contentRect } of entries) {
    const plot = plots.get(box), width = Math.floor(contentRect.width);
    if (!box.isConnected) {
      if (plot) plot.destroy();
      plots.delete(box);
      sizes.unobserve(box);
    } else if (plot && plot.width !== width) {
      plot.setSize({ width, height: plot.height });
    } else if (!plot && width > 0) {
      plots.set(box, new uPlot({ ...box.options, width }, box.data, box));
    }
  }
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  for (const plot of plots.values()) plot.redraw(false, true);
});

// options: uPlot options with a height; data: columns, x first
function plotBox(cls, label, options, data) {
  const box = el('div', { class: 'plot ' + cls, role: 'img', 'aria-label': label });
  const cursor = { y: false, drag: { x: false, y: false }, ...options.cursor };
  Object.assign(box, { options: { ...options, cursor }, data });
  sizes.observe(box);
  return box;
}

const grid = { stroke: colour('--line'), width: 1 };
const axis = (more) => ({
  stroke: colour('--soft'), font: '11px system-ui, sans-serif', grid, ticks: grid, ...more,
});
const dots = (label, name) => ({
  label, stroke: colour(name), fill: colour(name), paths: () => null,
  points: { show: true, size: 6, width: 0, fill: colour(name) }, value: (u, v) => us(v),
});
const level = (label, name, dash) => ({
  label, stroke: colour(name), width: 1, dash, points: { show: false }, value: (u, v) => us(v),
});

// Labels of an axis in one unit, with enough digits to tell neighbouring ticks apart.
function usTicks(u, ticks, index, space, step) {
  const [unit, name] = ticks[ticks.length - 1] >= 1e4 ? [1e3, 'ms'] : [1, 'µs'];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  return ticks.map((v) => (v / unit).toFixed(digits) + ' ' + name);
}

function clockTicks(u, ticks, index, space, step) {
  const format = new Intl.DateTimeFormat('en-GB', step >= 86400
    ? { day: 'numeric', month: 'short' }
    : { hour: '2-digit', minute: '2-digit', second: step < 60 ? '2-digit' : undefined });
  return ticks.map((v) => format.format(v * 1000));
}

const room = (low, high) => {
  const more = (high - low || high || 1) * 0.06;
  return [low - more, high + more];
};
const count = (n) => Array.from({ length: n }, (_, i) => i + 1);

// Samples of one result in measurement order, and their median.
export function samplesPlot(samples) {
  const values = samples.filter((v) => v !== null);
  if (!values.length) return null;
  const low = Math.min(...values), high = Math.max(...values), middle = median(values);
  return plotBox('samples', `${values.length} samples from ${us(low)} to ${us(high)}, median ${us(middle)}`, {
    height: 190,
    scales: { x: { time: false, range: [0.5, samples.length + 0.5] }, y: { range: room(low, high) } },
    axes: [
      axis({ size: 34, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] }),
      axis({ size: 72, values: usTicks }),
    ],
    series: [
      { label: 'sample', value: (u, v) => v ?? '–' }, dots('time', '--op-gemm1'), level('median', '--ink'),
    ],
  }, [count(samples.length), samples, samples.map(() => middle)]);
}

// One pipeline of a race: a dot per round, on a scale shared by all rows. The dashed line is the winner's
// median. The pointer marks the same round in all rows: onRound(text) gets the row's time in that round, or
// null.
export function raceRow(r, scale, onRound) {
  const rounds = count(scale.rounds), high = Math.max(scale.high, scale.lead);
  const shown = rounds.map((_, i) =>
    (r.samples[i] === null || r.samples[i] === undefined ? null : Math.min(r.samples[i], high)));
  const dotColour = r.winner || r.tie ? '--good' : r.dropped_at ? '--op-sort' : '--op-gemm1';
  return plotBox('race', `${r.samples.length} rounds, median ${us(median(r.samples))}`, {
    height: 46,
    padding: [4, 4, 4, 4],
    legend: { show: false },
    cursor: { sync: { key: 'race' }, points: { show: false } },
    hooks: { setCursor: [(u) => {
      const i = u.cursor.left >= 0 ? u.cursor.idx : null;
      const none = i === null || i === undefined || shown[i] === null;
      onRound(none ? null : `round ${i + 1}: ${us(r.samples[i])}`);
    }] },
    scales: { x: { time: false, range: [0.5, scale.rounds + 0.5] }, y: { range: room(scale.low, high) } },
    axes: [{ show: false }, { show: false }],
    series: [{}, dots('time', dotColour), level('winner', '--soft', [4, 4])],
  }, [rounds, shown, rounds.map(() => scale.lead)]);
}

// Progress of a batch: steps measured and rejected per second, the total, and the times of races, during
// which no step is measured.
export function timelinePlot(t) {
  const perSecond = (list) => list.map((n) => n * 1000 / t.bucket_ms);
  let all = 0;
  const sums = t.measured.map((n) => (all += n));
  const rates = perSecond(t.measured), most = Math.max(...rates);
  if (!all) return null;
  const bars = (label, name) => ({
    label, stroke: colour(name), fill: colour(name), width: 0,
    paths: uPlot.paths.bars({ size: [0.9, 40], align: 1 }), points: { show: false },
    value: (u, v) => (v === null ? '–' : v.toFixed(v < 10 ? 1 : 0)),
  });
  const end = t.from_ms + t.bucket_ms * t.measured.length;
  return plotBox('timeline', `${all} steps measured, at most ${most.toFixed(1)} per second`, {
    height: 200,
    scales: {
      x: { range: [t.from_ms / 1000, end / 1000] },
      y: { range: [0, most * 1.08] },
      all: { range: [0, all * 1.08] },
    },
    axes: [
      axis({ size: 34, space: 70, values: clockTicks }),
      axis({ size: 48 }),
      axis({ scale: 'all', side: 1, size: 62, grid: { show: false } }),
    ],
    series: [
      { label: 'time', value: (u, v) => (v === null ? '–' : new Date(v * 1000).toLocaleTimeString('en-GB')) },
      bars('steps per second', '--op-gemm1'),
      bars('rejected per second', '--bad'),
      {
        label: 'total', scale: 'all', stroke: colour('--good'), width: 2, points: { show: false },
        value: (u, v) => (v === null ? '–' : String(v)),
      },
      { ...dots('races', '--op-quant'), value: (u, v, series, i) => (i === null ? '–' : String(t.raced[i])) },
    ],
  }, [
    t.measured.map((_, i) => (t.from_ms + i * t.bucket_ms) / 1000),
    rates,
    perSecond(t.refused),
    sums,
    t.raced.map((n) => (n ? 0 : null)),
  ]);
}

// Ticks of a logarithmic scale: 1, 2 and 5 times each power of ten.
function logTicks(u, index, low, high) {
  const ticks = [];
  for (let ten = 10 ** Math.floor(Math.log10(low)); ten <= high; ten *= 10)
    ticks.push(...[ten, 2 * ten, 5 * ten].filter((v) => v >= low && v <= high));
  return ticks;
}

// Layer time of a layer model by token count, one line per device class, both scales logarithmic.
export function ladderPlot(tokens, all) {
  const lines = all.filter(([, list]) => list.some((v) => v !== null));
  const timed = lines.flatMap(([, list]) => list).filter((v) => v !== null);
  if (timed.length < 2 || tokens.length < 2) return null;
  const names = ['--op-gemm1', '--op-quant', '--op-combine', '--op-gemm2', '--op-one', '--op-other'];
  const beyond = (low, high) => [low / 1.25, high * 1.25];
  const low = Math.min(...timed), high = Math.max(...timed), classes = lines.map(([name]) => name).join(', ');
  return plotBox('ladder', `time by token count, from ${us(low)} to ${us(high)}, on ${classes}`, {
    height: 220,
    scales: {
      x: { time: false, distr: 3, log: 2, range: beyond(tokens[0], tokens[tokens.length - 1]) },
      y: { distr: 3, range: beyond(low, high) },
    },
    axes: [
      axis({
        size: 34, splits: () => tokens, filter: (u, ticks) => ticks, values: (u, ticks) => ticks.map(String),
      }),
      axis({
        size: 72, splits: logTicks, filter: (u, ticks) => ticks,
        values: (u, ticks) => ticks.map((v) => (v < 1e4 ? `${v} µs` : `${v / 1e3} ms`)),
      }),
    ],
    series: [
      { label: 'tokens', value: (u, v) => v ?? '–' },
      ...lines.map(([name], i) => ({
        label: name, stroke: colour(names[i % names.length]), width: 2,
        points: { show: true, size: 6, fill: colour(names[i % names.length]) }, value: (u, v) => us(v),
      })),
    ],
  }, [tokens, ...lines.map(([, list]) => list)]);
}
