// DOM elements, bars, progress and number formats. Plots are in plots.js. Texts are set with textContent
// only, so that text from a worker or a user never becomes markup.

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

export const note = (text) => el('p', { class: 'note', text });
export const small = (text) => el('span', { class: 'small', text });

// value: in µs
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

// parts: [{share, cls}]; label: text for screen readers and tooltips
export function progress(parts, label, thin) {
  const bar = el('div', {
    class: 'progress' + (thin ? ' thin' : ''), role: 'img', 'aria-label': label, title: label,
  });
  for (const p of parts) {
    const i = el('i', { class: p.cls });
    i.style.width = 100 * Math.min(1, Math.max(0, p.share)) + '%';
    bar.append(i);
  }
  return bar;
}

// parts: [{value, cls, text, href, title}]; whole: value of the full width
export function stackedBar(parts, whole, label, low) {
  const bar = el('div', { class: 'bar' + (low ? ' low' : ''), role: 'group', 'aria-label': label });
  for (const p of parts) {
    const share = whole > 0 ? p.value / whole : 0;
    const part = el(p.href ? 'a' : 'span', {
      href: p.href, class: p.cls + (share < 0.07 || low ? ' narrow' : ''),
      title: p.title, 'aria-label': p.title,
    }, p.text || '');
    part.style.width = 100 * share + '%';
    bar.append(part);
  }
  return bar;
}

export function legend(entries) {
  return el('ul', { class: 'legend' }, entries.map(([cls, text]) => el('li', { class: cls, text })));
}

// Colour class of a step: by the GEMM it covers, otherwise by its other ops.
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
