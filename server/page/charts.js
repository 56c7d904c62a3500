// Small charts of plain elements and SVG. Text goes in by textContent only, so nothing that a worker or a file
// name says can become markup.

export function el(tag, props, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(props || {})) {
    if (v === null || v === undefined || v === false) continue;
    if (k === 'text') e.textContent = v;
    else if (k.startsWith('on')) e.addEventListener(k.slice(2), v);
    else e.setAttribute(k, v === true ? '' : v);
  }
  for (const c of children.flat(Infinity)) if (c !== null && c !== undefined && c !== false) e.append(c);
  return e;
}

function svg(tag, props, ...children) {
  const e = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [k, v] of Object.entries(props || {})) e.setAttribute(k, v);
  for (const c of children.flat()) if (c) e.append(c);
  return e;
}

export function us(value) {
  if (value === null || value === undefined) return '–';
  if (value >= 1e6) return (value / 1e6).toFixed(2) + ' s';
  if (value >= 1e4) return (value / 1e3).toFixed(2) + ' ms';
  return (value >= 1000 ? value.toFixed(0) : value >= 100 ? value.toFixed(1) : value.toFixed(2)) + ' µs';
}

export const percent = (x) => (x * 100).toFixed(x < 0.1 && x > 0 ? 1 : 0) + '%';

export function ago(ms) {
  const s = Math.max(0, (Date.now() - ms) / 1000);
  return s < 5 ? 'now' : span(s) + ' ago';
}

export function span(s) {
  if (s < 90) return Math.round(s) + ' s';
  if (s < 5400) return Math.round(s / 60) + ' min';
  if (s < 129600) return (s / 3600).toFixed(1) + ' h';
  return Math.round(s / 86400) + ' days';
}

export const median = (list) => {
  const a = list.filter((x) => x !== null).sort((x, y) => x - y);
  return a.length ? (a[(a.length - 1) >> 1] + a[a.length >> 1]) / 2 : null;
};

// parts: [{share, cls}], label for those who do not see it
export function progress(parts, label, thin) {
  const bar = el('div', { class: 'progress' + (thin ? ' thin' : ''), role: 'img', 'aria-label': label, title: label });
  for (const p of parts) {
    const i = el('i', { class: p.cls });
    i.style.width = 100 * Math.min(1, Math.max(0, p.share)) + '%';
    bar.append(i);
  }
  return bar;
}

// parts: [{value, cls, text, href, title}]; whole: what the full width stands for
export function stackedBar(parts, whole, label, low) {
  const bar = el('div', { class: 'bar' + (low ? ' low' : ''), role: 'group', 'aria-label': label });
  for (const p of parts) {
    const share = whole > 0 ? p.value / whole : 0;
    const part = el(p.href ? 'a' : 'span', { href: p.href, class: p.cls + (share < 0.07 || low ? ' narrow' : ''), title: p.title, 'aria-label': p.title },
      p.text || '');
    part.style.width = 100 * share + '%';
    bar.append(part);
  }
  return bar;
}

export function legend(entries) {
  return el('ul', { class: 'legend' }, entries.map(([cls, text]) => el('li', { class: cls, text })));
}

// Which colour a step has: by the GEMM it holds, else by what it moves.
export function opClass(covers) {
  const ops = (covers || '').split('+');
  const one = ops.includes('gemm1'), two = ops.includes('gemm2');
  if (one && two) return 'c-one';
  if (one) return 'c-gemm1';
  if (two) return 'c-gemm2';
  if (ops.includes('quant1') || ops.includes('quant2')) return 'c-quant';
  if (ops.includes('sort')) return 'c-sort';
  if (ops.includes('combine')) return 'c-combine';
  return 'c-other';
}

const W = 640, H = 42;

// One runner of a race: a dot a round, on a scale that all rows share; the dashed line is the leader's median.
export function raceRow(r, scale) {
  const x = (round) => 6 + (W - 12) * (scale.rounds > 1 ? round / (scale.rounds - 1) : 0.5);
  const y = (v) => H - 4 - (H - 8) * Math.min(1, Math.max(0, (v - scale.low) / (scale.high - scale.low || 1)));
  const label = `${r.samples.length} rounds, median ${us(r.us)}`;
  const pic = svg('svg', { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: 'none', class: 'race' + (r.tie ? ' tie' : r.dropped_at ? ' dropped' : ''), role: 'img', 'aria-label': label });
  pic.append(svg('line', { class: 'zero', x1: 0, x2: W, y1: y(scale.lead), y2: y(scale.lead) }));
  if (r.dropped_at) pic.append(svg('line', { class: 'axis', x1: x(r.samples.length - 0.5), x2: x(r.samples.length - 0.5), y1: 2, y2: H - 2 }));
  r.samples.forEach((v, i) => v === null || pic.append(svg('circle', { class: 'dot', cx: x(i), cy: y(v), r: 3 }, title(`round ${i + 1}: ${us(v)}`))));
  return pic;
}

function title(text) {
  const t = svg('title');
  t.textContent = text;
  return t;
}

// Samples of one result along one axis, in the order they were taken from top to bottom.
export function stripPlot(samples) {
  const values = samples.filter((v) => v !== null);
  if (!values.length) return null;
  const low = Math.min(...values), high = Math.max(...values), height = 54;
  const x = (v) => 10 + (W - 20) * (high > low ? (v - low) / (high - low) : 0.5);
  const pic = svg('svg', { viewBox: `0 0 ${W} ${height + 16}`, class: 'race', role: 'img', 'aria-label': `${values.length} samples from ${us(low)} to ${us(high)}` });
  values.forEach((v, i) => pic.append(svg('circle', { class: 'dot', cx: x(v), cy: 6 + (height - 12) * (values.length > 1 ? i / (values.length - 1) : 0.5), r: 3.2 }, title(`${i + 1}: ${us(v)}`))));
  const m = median(values);
  pic.append(svg('line', { class: 'median', x1: x(m), x2: x(m), y1: 0, y2: height }), svg('line', { class: 'axis', x1: 0, x2: W, y1: height, y2: height }));
  const texts = [[10, 'start', us(low)], [W - 10, 'end', us(high)]];
  if (x(m) > 90 && x(m) < W - 90) texts.push([x(m), 'middle', us(m)]);
  for (const [at, anchor, text] of texts) {
    const t = svg('text', { x: at, y: height + 13, 'text-anchor': anchor });
    t.textContent = text;
    pic.append(t);
  }
  return pic;
}
