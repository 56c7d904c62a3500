// The status page: views by hash, each made of sections that fetch and draw themselves. An event from the server
// makes the sections that it concerns fetch again; one draws anew only when its data changed.
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

/* --- tokens ----------------------------------------------------------------------------------------------- */

// A farm that asks for a token gets it from here once, and keeps it in a cookie that no script can read. Here only the fact stays.
const signOut = document.getElementById('sign-out');
const showSignOut = () => { signOut.hidden = !sessionStorage.getItem('signed-in'); };

async function sign(path, headers) {
  const response = await fetch('/api/v1/' + path, { method: 'POST', headers });
  return response.ok ? null : (await response.json()).detail;
}

function askForToken() {
  if (document.getElementById('sign-in')) return;
  const input = el('input', { type: 'password', id: 'token', autocomplete: 'off', required: true, size: 40 });
  const note = el('p', { class: 'note', role: 'alert' });
  const form = el('form', { id: 'sign-in', onsubmit: async (event) => {
    event.preventDefault();
    const refusal = await sign('session', { Authorization: 'Bearer ' + input.value.trim() });
    input.value = '';
    note.textContent = refusal || '';
    if (refusal) return;
    sessionStorage.setItem('signed-in', 'yes');
    form.remove();
    showSignOut();
    show();
    follow();
  } },
  el('label', { for: 'token', text: 'This farm asks for an access token' }), ' ', input, ' ', el('button', { text: 'Sign in' }), note);
  main.before(form);
}

signOut.addEventListener('click', async () => {
  await sign('session/end');
  sessionStorage.removeItem('signed-in');
  location.reload();
});
showSignOut();

// A list to its end, up to `most` items.
export async function getAll(path, most = 2000) {
  const items = [];
  let next = null;
  do {
    const page = await get(path + (path.includes('?') ? '&' : '?') + 'limit=500' + (next ? '&cursor=' + encodeURIComponent(next) : ''));
    items.push(...page.items);
    next = page.next;
  } while (next && items.length < most);
  items.more = next !== null;
  return items;
}

// What an event asks for. A section may say how many milliseconds have to lie between its fetches.
function want(section) {
  const mine = generation, wait = section.every && section.asked ? section.asked + section.every - performance.now() : 0;
  if (wait <= 0) return refresh(section, mine);
  section.timer = section.timer || setTimeout(() => {
    section.timer = 0;
    if (mine === generation) refresh(section, mine);
  }, wait);
}

// One fetch of a section at a time, so that an answer that comes late never covers a newer one: what is asked for
// meanwhile is fetched after it.
async function refresh(section, mine) {
  if (section.busy) {
    section.again = true;
    return;
  }
  section.busy = true;
  section.asked = performance.now();
  try {
    const data = await section.load(get, getAll);
    if (mine !== generation) return;
    const text = JSON.stringify(data);
    if (text !== section.text) {
      section.text = text;
      section.body.replaceChildren(...[section.draw(data)].flat(Infinity).filter(Boolean));
    }
  } catch (error) {
    if (mine === generation && !section.text) section.body.replaceChildren(el('p', { class: 'note', text: error.message }));
  } finally {
    section.busy = false;
  }
  if (section.again && mine === generation) {
    section.again = false;
    await refresh(section, mine);
  }
}

async function show() {
  const [path, query] = (location.hash.slice(1) || '/').split('?');
  const mine = ++generation;
  for (const [pattern, view] of routes) {
    const match = pattern.exec(path);
    if (!match) continue;
    sections = view(Object.assign([...match].slice(1).map(Number), { query: new URLSearchParams(query) }), (s) => (s ? refresh(s, mine) : refreshAll()));
    main.replaceChildren(...sections.map((s) => {
      s.body = el('div');
      return s.frame ? s.frame(s.body) : s.body;
    }));
    for (const a of document.querySelectorAll('.top nav a')) {
      if (a.getAttribute('href') === '#' + path) a.setAttribute('aria-current', 'page');
      else a.removeAttribute('aria-current');
    }
    await Promise.all(sections.map((s) => refresh(s, mine)));
    return;
  }
  main.replaceChildren(el('p', { class: 'note', text: 'There is no such view.' }));
}

function refreshAll() {
  for (const s of sections) refresh(s, generation);
}

// Events come in bursts: what they ask for is fetched at most once in a while.
let waiting = [];
function onEvent(message, kind) {
  let data = {};
  try { data = JSON.parse(message.data); } catch { return; }
  waiting.push({ kind, ...data });
  if (waiting.length === 1) {
    setTimeout(() => {
      const events = waiting;
      waiting = [];
      for (const s of sections) if (!s.wants || events.some((e) => s.wants(e))) want(s);
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
    if (source.readyState === EventSource.CLOSED && !document.getElementById('sign-in')) setTimeout(follow, 3000);
  };
  for (const kind of ['batch', 'task', 'config', 'worker', 'failure', 'quarantine', 'release', 'channel']) source.addEventListener(kind, (m) => onEvent(m, kind));
}

addEventListener('hashchange', () => { show(); main.focus({ preventScroll: true }); scrollTo(0, 0); });
show();
follow();
// Ages and estimates move on also when nothing happens.
setInterval(() => { for (const s of sections) if (s.ticks) { s.text = null; refresh(s, generation); } }, 15000);
