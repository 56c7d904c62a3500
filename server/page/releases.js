// Release view: channels, releases, and lookups of production that found no row.
import { ago, el, note, small } from '/page/charts.js';
import { badge, box, shapeName } from '/page/views.js';

const MOVES = 3; // latest moves shown per channel
const CHANNELS_WITH_MOVES = 8; // the moves of other channels are not fetched

const table = (heads, rows) => el('div', { class: 'scroll' }, el('table', {},
  el('thead', {}, el('tr', {}, heads.map(([text, cls]) => el('th', { class: cls || '', text })))),
  el('tbody', {}, rows)));

const releaseName = (release) => (release ? `#${release.id} ${release.name}` : '–');
const moveNames = { stage: 'staged', approve: 'approved', rollback: 'rolled back', unstage: 'unstaged' };
const moveText = (m) =>
  `${moveNames[m.move]} #${m.move === 'rollback' || m.move === 'unstage' ? m.from_release : m.to_release}, ` +
  `${ago(m.at_ms)}${m.moved_by ? ' by ' + m.moved_by : ''}${m.reason ? ': ' + m.reason : ''}`;

async function loadChannels(get, getAll) {
  const list = await getAll('channels');
  await Promise.all(list.slice(0, CHANNELS_WITH_MOVES).map(async (c) => {
    c.moves = (await get(`channels/${c.name}/history?limit=${MOVES}`)).items;
  }));
  return list;
}

/* The main file of a release: vLLM and SGLang read configuration files instead of a table. */
function fileOf(consumer) {
  return consumer === 'vllm' || consumer === 'sglang' ? 'configs.json' : 'tuned_fmoe.csv';
}

function drawChannels(list) {
  if (!list.length) return note('No channel yet. Create one with: moefarm release stage CHANNEL RELEASE');
  const heads = [['Channel'], ['Current'], ['Staged', 'wide'], ['Last moves']];
  return table(heads, list.map((c) => el('tr', { 'data-channel': c.name },
    el('td', { class: 'mono', text: c.name }),
    el('td', {}, c.current
      ? el('a', {
        href: `/api/v1/channels/${c.name}/${fileOf(c.current.consumer)}`, text: releaseName(c.current),
      })
      : '–'),
    el('td', { class: 'wide', text: releaseName(c.staged) }),
    el('td', {}, (c.moves || []).map((m) => el('div', { class: 'small', text: moveText(m) }))))));
}

function drawReleases(list) {
  if (!list.length) return note('No release yet. Freeze the current export with: moefarm release freeze');
  const heads = [
    ['Release'], ['Channels'], ['Rows', 'n'], ['Left out', 'n wide'], ['Frozen', 'n wide'], ['Files'],
  ];
  const channelName = (c) => (c.as === 'staged' ? c.channel + ' (staged)' : c.channel);
  return table(heads, list.map((r) => el('tr', { 'data-release': r.id },
    el('td', {}, `#${r.id} ${r.name}`,
      el('div', { class: 'small mono', text: r.sha256.slice(0, 12), title: r.sha256 })),
    el('td', {}, r.channels.map((c) => [badge(channelName(c)), ' '])),
    el('td', { class: 'n', text: String(r.rows) }),
    el('td', { class: 'n wide', text: String(r.left_out) }),
    el('td', { class: 'n wide' }, ago(r.created_ms),
      r.created_by ? el('div', { class: 'small', text: 'by ' + r.created_by }) : null),
    el('td', {},
      el('a', {
        href: `/api/v1/releases/${r.id}/${fileOf(r.filters.consumer)}`, text: 'table',
      }), ' ',
      el('a', { href: `/api/v1/releases/${r.id}/manifest.json`, text: 'manifest' })))));
}

function drawMisses(page) {
  if (!page.items.length) return note('No misses reported. libfmoe reports lookups that find no row.');
  const tokens = (m) => `${m.shape.token} tokens`;
  const heads = [['Lookups', 'n'], ['Shape'], ['Class', 'wide'], ['State'], ['Last', 'n wide']];
  return [
    table(heads, page.items.map((m) => el('tr', { 'data-miss': m.id },
      el('td', { class: 'n', text: String(m.count) }),
      el('td', {},
        m.task ? el('a', { href: '#/task/' + m.task, text: tokens(m) }) : tokens(m),
        el('div', { class: 'small', text: shapeName(m.shape) })),
      el('td', { class: 'wide', text: m.class }),
      el('td', {}, badge(m.state)),
      el('td', { class: 'n wide', text: ago(m.last_ms) })))),
    page.next ? el('p', { class: 'small', text: 'The list is truncated; the API has all entries.' }) : null,
  ];
}

export function releasesView() {
  const wants = (e) => e.kind === 'release' || e.kind === 'channel';
  const about = 'A release is a frozen export. Hosts pull the latest approved release of their channel.';
  const missNote = 'lookups that found no row, most frequent first';
  return [
    {
      load: async () => 0,
      draw: () => [el('h1', { text: 'Releases' }), el('p', { class: 'sub', text: about })],
    },
    { frame: box('Channels'), ticks: true, wants, load: loadChannels, draw: drawChannels },
    {
      frame: box('Frozen exports'),
      ticks: true,
      wants,
      load: (get, getAll) => getAll('releases', 200),
      draw: drawReleases,
    },
    {
      frame: box('Missed by production', small(missNote)),
      ticks: true,
      wants: (e) => e.kind === 'batch' || e.kind === 'config',
      every: 10000,
      load: (get) => get('misses?limit=50'),
      draw: drawMisses,
    },
  ];
}
