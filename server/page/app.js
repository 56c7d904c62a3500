// The status page. The URL's hash selects a view. A view consists of sections; each section fetches its data
// and draws itself. A server event refreshes the sections that it concerns. A section is redrawn only if its
// data has changed.
import { el } from '/page/charts.js';
import { routes } from '/page/views.js';

const main = document.getElementById('main');
const live = document.getElementById('live');
let sections = [];
let generation = 0;

export async function get(path) {
  const response = await fetch('/api/v1/' + path, { headers: { Accept: 'application/json' } });
  const body = await response.json();
  if (response.status === 401) askForToken();
  if (!response.ok) throw new Error(body.detail || response.statusText);
  return body;
}

/* --- tokens --------------------------------------------------------------------------------------------- */

// The user enters the access token once. The server keeps it in an HttpOnly cookie; sessionStorage only notes
// that the user has signed in.
const signOut = document.getElementById('sign-out');
const showSignOut = () => { signOut.hidden = !sessionStorage.getItem('signed-in'); };

// Returns null on success, otherwise the error message.
async function postSession(path, headers) {
  const response = await fetch('/api/v1/' + path, { method: 'POST', headers });
  return response.ok ? null : (await response.json()).detail;
}

function askForToken() {
  if (document.getElementById('sign-in')) return;
  const input = el('input', { type: 'password', id: 'token', autocomplete: 'off', required: true, size: 40 });
  const note = el('p', { class: 'note', role: 'alert' });
  const form = el('form', { id: 'sign-in', onsubmit: async (event) => {
    event.preventDefault();
    const error = await postSession('session', { Authorization: 'Bearer ' + input.value.trim() });
    input.value = '';
    note.textContent = error || '';
    if (error) return;
    sessionStorage.setItem('signed-in', 'yes');
    form.remove();
    showSignOut();
    show();
    follow();
  } },
  el('label', { for: 'token', text: 'This farm requires an access token' }),
  ' ', input, ' ', el('button', { text: 'Sign in' }), note);
  main.before(form);
}

signOut.addEventListener('click', async () => {
  await postSession('session/end');
  sessionStorage.removeItem('signed-in');
  location.reload();
});
showSignOut();

// Fetches all pages of a list, up to `most` items. `more` is true if the list has further items.
export async function getAll(path, most = 2000) {
  const items = [];
  let next = null;
  do {
    const cursor = next ? '&cursor=' + encodeURIComponent(next) : '';
    const page = await get(path + (path.includes('?') ? '&' : '?') + 'limit=500' + cursor);
    items.push(...page.items);
    next = page.next;
  } while (next && items.length < most);
  items.more = next !== null;
  return items;
}

// Refreshes a section after an event, but not before `section.every` ms have passed since its last fetch.
function requestRefresh(section) {
  const current = generation;
  const wait = section.every && section.asked ? section.asked + section.every - performance.now() : 0;
  if (wait <= 0) return refresh(section, current);
  section.timer = section.timer || setTimeout(() => {
    section.timer = 0;
    if (current === generation) refresh(section, current);
  }, wait);
}

// Fetches and draws a section. Only one fetch runs at a time, so that a late response never replaces a newer
// one. A request during a fetch starts another fetch afterwards.
async function refresh(section, current) {
  if (section.busy) {
    section.again = true;
    return;
  }
  section.busy = true;
  section.asked = performance.now();
  try {
    const data = await section.load(get, getAll);
    if (current !== generation) return;
    const text = JSON.stringify(data);
    if (text !== section.text) {
      section.text = text;
      section.body.replaceChildren(...[section.draw(data)].flat(Infinity).filter(Boolean));
    }
  } catch (error) {
    if (current === generation && !section.text)
      section.body.replaceChildren(el('p', { class: 'note', text: error.message }));
  } finally {
    section.busy = false;
  }
  if (section.again && current === generation) {
    section.again = false;
    await refresh(section, current);
  }
}

async function show() {
  const [path, query] = (location.hash.slice(1) || '/').split('?');
  const current = ++generation;
  for (const [pattern, view] of routes) {
    const match = pattern.exec(path);
    if (!match) continue;
    sections = view(
      Object.assign([...match].slice(1).map(Number), { query: new URLSearchParams(query) }),
      (s) => (s ? refresh(s, current) : refreshAll()));
    main.replaceChildren(...sections.map((s) => {
      s.body = el('div');
      return s.frame ? s.frame(s.body) : s.body;
    }));
    for (const a of document.querySelectorAll('.top nav a')) {
      if (a.getAttribute('href') === '#' + path) a.setAttribute('aria-current', 'page');
      else a.removeAttribute('aria-current');
    }
    await Promise.all(sections.map((s) => refresh(s, current)));
    return;
  }
  main.replaceChildren(el('p', { class: 'note', text: 'Page not found.' }));
}

function refreshAll() {
  for (const s of sections) refresh(s, generation);
}

// Collects bursts of events for 400 ms, then refreshes each concerned section once.
let waiting = [];
function onEvent(message, kind) {
  let data = {};
  try { data = JSON.parse(message.data); } catch { return; }
  waiting.push({ kind, ...data });
  if (waiting.length === 1) {
    setTimeout(() => {
      const events = waiting;
      waiting = [];
      for (const s of sections) if (!s.wants || events.some((e) => s.wants(e))) requestRefresh(s);
    }, 400);
  }
}

let source = null;
function follow() {
  if (source) source.close();
  source = new EventSource('/api/v1/events');
  source.onopen = () => {
    live.textContent = 'live';
    live.classList.add('on');
    refreshAll();
  };
  source.onerror = () => {
    live.textContent = 'reconnecting';
    live.classList.remove('on');
    if (source.readyState === EventSource.CLOSED && !document.getElementById('sign-in'))
      setTimeout(follow, 3000);
  };
  const kinds = ['batch', 'task', 'config', 'worker', 'failure', 'quarantine', 'release', 'channel'];
  for (const kind of kinds) source.addEventListener(kind, (m) => onEvent(m, kind));
}

addEventListener('hashchange', () => { show(); main.focus({ preventScroll: true }); scrollTo(0, 0); });
show();
follow();
// Redraws the sections that show ages or estimates every 15 s, even without events.
setInterval(() => {
  for (const s of sections) if (s.ticks) { s.text = null; refresh(s, generation); }
}, 15000);
