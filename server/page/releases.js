// What deployment pulls, what was frozen for it, and what production did not find.
import { ago, el } from '/page/charts.js';
import { badge, box, shapeName } from '/page/views.js';

const MOVES = 3; // of a channel, the latest ones
const ASKED = 8; // channels whose moves are shown

const table = (heads, rows) => el('div', { class: 'scroll' }, el('table', {},
  el('thead', {}, el('tr', {}, heads.map(([text, cls]) => el('th', { class: cls || '', text })))),
  el('tbody', {}, rows)));

const place = (release) => (release ? `#${release.id} ${release.name}` : '–');
const said = { stage: 'staged', approve: 'approved', rollback: 'took back', unstage: 'unstaged' };
const moved = (m) => `${said[m.move]} #${m.move === 'rollback' || m.move === 'unstage' ? m.from_release : m.to_release}, ${ago(m.at_ms)}${m.moved_by ? ' by ' + m.moved_by : ''}${m.reason ? ': ' + m.reason : ''}`;

async function loadChannels(get, getAll) {
  const list = await getAll('channels');
  await Promise.all(list.slice(0, ASKED).map(async (c) => { c.moves = (await get(`channels/${c.name}/history?limit=${MOVES}`)).items; }));
  return list;
}

function drawChannels(list) {
  if (!list.length) return el('p', { class: 'note', text: 'No channel yet. Make one with: moefarm release stage CHANNEL RELEASE' });
  return table([['Channel'], ['Current'], ['Staged', 'wide'], ['Last moves']], list.map((c) => el('tr', { 'data-channel': c.name },
    el('td', { class: 'mono', text: c.name }),
    el('td', {}, c.current ? el('a', { href: `/api/v1/channels/${c.name}/tuned_fmoe.csv`, text: place(c.current) }) : '–'),
    el('td', { class: 'wide', text: place(c.staged) }),
    el('td', {}, (c.moves || []).map((m) => el('div', { class: 'small', text: moved(m) }))))));
}

function drawReleases(list) {
  if (!list.length) return el('p', { class: 'note', text: 'Nothing is frozen yet. Freeze what is exported now with: moefarm release freeze' });
  return table([['Release'], ['Channels'], ['Rows', 'n'], ['Left out', 'n wide'], ['Frozen', 'n wide'], ['Files']], list.map((r) => el('tr', { 'data-release': r.id },
    el('td', {}, `#${r.id} ${r.name}`, el('div', { class: 'small mono', text: r.sha256.slice(0, 12), title: r.sha256 })),
    el('td', {}, r.channels.map((c) => [badge(c.as === 'staged' ? c.channel + ' (staged)' : c.channel), ' '])),
    el('td', { class: 'n', text: String(r.rows) }),
    el('td', { class: 'n wide', text: String(r.left_out) }),
    el('td', { class: 'n wide' }, ago(r.created_ms), r.created_by ? el('div', { class: 'small', text: 'by ' + r.created_by }) : null),
    el('td', {}, el('a', { href: `/api/v1/releases/${r.id}/tuned_fmoe.csv`, text: 'table' }), ' ', el('a', { href: `/api/v1/releases/${r.id}/manifest.json`, text: 'manifest' })))));
}

function drawMisses(page) {
  if (!page.items.length) return el('p', { class: 'note', text: 'Nothing was reported. libfmoe reports what it looks up and does not find.' });
  return [table([['Missed', 'n'], ['Shape'], ['Class', 'wide'], ['State'], ['Last', 'n wide']], page.items.map((m) => el('tr', { 'data-miss': m.id },
    el('td', { class: 'n', text: String(m.count) }),
    el('td', {}, m.task ? el('a', { href: '#/task/' + m.task, text: `${m.shape.token} tokens` }) : `${m.shape.token} tokens`, el('div', { class: 'small', text: shapeName(m.shape) })),
    el('td', { class: 'wide', text: m.class }),
    el('td', {}, badge(m.state)),
    el('td', { class: 'n wide', text: ago(m.last_ms) })))), page.next ? el('p', { class: 'small', text: 'There are more; the API has them all.' }) : null];
}

export function releasesView() {
  const wants = (e) => e.kind === 'release' || e.kind === 'channel';
  return [
    { load: async () => 0, draw: () => [el('h1', { text: 'Releases' }), el('p', { class: 'sub', text: 'A release is an export that was frozen; hosts pull the one that was approved last on their channel.' })] },
    { frame: box('Channels'), ticks: true, wants, load: loadChannels, draw: drawChannels },
    { frame: box('Frozen exports'), ticks: true, wants, load: (get, getAll) => getAll('releases', 200), draw: drawReleases },
    { frame: box('Missed by production', el('span', { class: 'small', text: 'look-ups that found no row, most missed first' })), ticks: true, wants: (e) => e.kind === 'batch' || e.kind === 'config', every: 10000, load: (get) => get('misses?limit=50'), draw: drawMisses },
  ];
}
