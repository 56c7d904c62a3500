// Tests the status page in a real browser. First it uses the fixture's farm, which has data for every view.
// Then it uses a real farm (moefarmd and simulated workers), whose page must update without a reload from the
// empty page to the finished batch.
//
//   node page.mjs BUILD_FOLDER [SCREENSHOT_FOLDER]
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { missing, openBrowser, start, until } from './driver.mjs';

const [build, shots] = process.argv.slice(2);
if (missing().length) {
  console.log(`skipped: ${missing().join(' and ')} missing (packages chromium, chromium-driver)`);
  process.exit(77);
}

const children = [];
function child(...args) {
  const c = start(...args);
  children.push(c.child);
  return c;
}

async function saveScreenshot(browser, name) {
  if (shots) writeFileSync(join(shots, name + '.png'), await browser.screenshot());
}

// Marks the document, to detect reloads: a reload removes the mark.
const mark = (browser) => browser.run('window.marked = true');
const marked = (browser) => browser.run('return window.marked === true');
// Opens a view and waits until all its sections are drawn, because each section fetches its own data.
async function opened(browser, url, selector) {
  const empty = 'main > div:empty, main > section > div:empty';
  await browser.go(url);
  await until(`${selector} of ${url}`,
    async () => (await browser.count(selector)) > 0 && (await browser.count(empty)) === 0);
}

// Returns the fraction of a canvas's pixels that are drawn, and their mean brightness, from 0 to 255.
const ink = (browser, selector) => browser.run(`const c = document.querySelector(arguments[0]);
  const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
  let n = 0, light = 0;
  for (let i = 0; i < d.length; i += 4) if (d[i + 3] > 40) { n++; light += (d[i] + d[i + 1] + d[i + 2]) / 3; }
  return { fraction: 4 * n / d.length, light: n ? light / n : 0 };`, selector);
const drawn = (browser, selector) => until(`ink in ${selector}`,
  async () => (await browser.count(selector)) > 0 && (await ink(browser, selector)).fraction > 0.0005);
const label = (browser, selector) => {
  return browser.run('return document.querySelector(arguments[0]).getAttribute("aria-label")', selector);
};

// Starts moefarmd, waits until it has written its ports to portFile, and returns these ports {http, hub}.
async function startMoefarmd(portFile, args) {
  const more = ['--http', '127.0.0.1:0', '--port-file', portFile, '--log-level', 'error'];
  child(join(build, 'server/moefarmd'), [...args, ...more], /$^/).ready.catch(() => {});
  return until('moefarmd', () => {
    const lines = readFileSync(portFile, 'utf8').trim().split('\n');
    return Object.fromEntries(lines.map((l) => l.split('=')));
  });
}

async function onFixture(browser) {
  const { child: server, ready } = child(join(build, 'tests/page_fixture'), [], /port (\d+)/);
  const base = `http://127.0.0.1:${(await ready)[1]}/`;

  await opened(browser, base, 'tr[data-batch]');
  await until('the live mark', async () => (await browser.text('#live')) === 'live');
  assert.equal(await browser.count('tr[data-batch]'), 3);
  assert.equal(await browser.count('[data-worker]'), 5);
  assert.match(await browser.text('tr[data-batch="3"]'), /no worker of the class gfx942\/304/);
  await saveScreenshot(browser, 'home');

  // Progress appears without a reload.
  await opened(browser, base + '#/batch/2', 'tr[data-task="10"]');
  await mark(browser);
  const before = await browser.text('tr[data-task="10"] .measured');
  const bar = 'tr[data-task="10"] .progress i';
  const width = () => browser.run('return document.querySelector(arguments[0]).style.width', bar);
  const widthBefore = await width();
  server.stdin.write('progress\n');
  await until('more steps than ' + before,
    async () => (await browser.text('tr[data-task="10"] .measured')) !== before);
  assert.notEqual(await width(), widthBefore);
  assert.match(await browser.text('tr[data-task="13"]'), /every step that covers gemm2 failed/);
  await drawn(browser, '.timeline canvas');
  assert.match(await label(browser, '.timeline'), /^\d+ steps measured, at most \d+\.\d per second$/);
  await saveScreenshot(browser, 'batch');
  server.stdin.write('finish\n');
  await until('the batch to be done', async () => /done/.test(await browser.text('.tiles')));
  assert.equal(await marked(browser), true);

  // The view of a task shows bars, ties, the race, reasons and filters.
  await opened(browser, base + '#/task/5', '.ranked li');
  assert.match(await browser.text('.promotion'), new RegExp('kept: compared with the known row it is SAME ' +
    'on node-a-cpu0.*known from line 7 of the baseline'));
  await until('the race', async () => (await browser.count('.race canvas')) === 8);
  await drawn(browser, '.race canvas');
  assert.match(await label(browser, '.race'), /^30 rounds, median 2\d\d\.\d µs$/);
  // Pointing at a round in one row shows this round in all rows that were not dropped before it.
  const shown = '.racegrid .what .small:not(.dropped)';
  const notes = () => browser.run(`return [...document.querySelectorAll(arguments[0])]
    .map((e) => e.textContent)`, shown);
  const unpointed = await notes();
  assert.equal(unpointed[0], 'winner');
  await browser.point('.race .u-over', 0.5);
  await until('a round', async () => /^round 15|^round 16/.test((await notes())[0]));
  const pointed = await notes();
  assert.match(pointed[1], /^round 1[56]: 2\d\d\.\d µs$/);
  assert.equal(pointed.at(-1), unpointed.at(-1));
  await until('the reasons', async () => (await browser.count('.why .reason')) > 4);
  assert.equal(await browser.count('.ranked li.winner'), 1);
  assert.match(await browser.text('.ranked li.winner .time'), /reported 2\d\d\.\d µs/);
  assert.equal(await browser.count('.alert .badge.bad'), 0);
  server.stdin.write('unstable\n');
  await until('the unstable time', async () => /^unstable it scatters$/.test(
    (await browser.text('.alert.bad') || '').trim()));
  await until('the badge in the ranking', async () =>
    (await browser.text('.ranked li.winner .badge.bad')) === 'unstable'); // the ranking has its own request
  assert.equal(await browser.count('.ranked li:first-child.winner .bar > a'), 4);
  assert.match(await browser.text('.ranked li:nth-child(2)'), /tie/);
  assert.match(await browser.text('.ranked li:nth-child(5)'), /dropped after round 10/);
  assert.match(await browser.text('.why'), /oneDNN's matmul supports bf16/);
  const tiles = await browser.text('.tiles');
  assert.equal(await browser.count('.tiles a[href^="#/pipeline/"]'), 6);
  assert.equal(await browser.run(`return [...document.querySelectorAll("section table td.n")]
    .filter((td) => /µs|ms/.test(td.textContent) && !td.querySelector("a")).length`), 0);
  assert.match(tiles, /Statistically tied\s*#\d+\s*30 rounds/);
  assert.match(tiles, /Regret under balanced\s*none/);
  assert.match(tiles, /Regret under zipf:1\.2\s*\+6\.\d+\s?%/);
  server.stdin.write('search\n');
  await until('the share of the candidates', async () =>
    /Steps measured\s*150\s*of 1920 candidates, 7\.8\d*\s?%/.test(await browser.text('.tiles')));
  await saveScreenshot(browser, 'task');
  // The response to the first typed letter arrives last. The page must still show the result for the whole
  // word.
  await browser.run(`const now = window.fetch;
    window.fetch = async (url, ...rest) => {
      if (!/kernel=o$/.test(url)) return now(url, ...rest);
      await new Promise((resolve) => setTimeout(resolve, 500));
      const answer = await now(url, ...rest);
      setTimeout(() => { window.late = true; }, 200);
      return answer;
    };`);
  await browser.type('input[type=search]', 'onednn*');
  await until('the late answer', () => browser.run('return window.late === true'));
  await until('one reason', async () => (await browser.count('.why li')) === 1);
  await browser.run(`const s = document.querySelector("select");
    s.value = "slow";
    s.dispatchEvent(new Event("change"));`);
  await until('slow steps only', async () => {
    const all = await browser.run(`return [...document.querySelectorAll("section table tbody tr")]
      .map((r) => r.querySelector(".badge").textContent)`);
    return all.length > 0 && all.every((t) => t === 'slow');
  });

  // Every displayed time is a link to its samples.
  await browser.click('.ranked li:first-child .bar a:nth-child(2)');
  await drawn(browser, '.samples canvas');
  assert.match(await label(browser, '.samples'), /^20 samples from/);
  assert.match(await browser.run('return location.hash'), /^#\/step\/\d+\?task=5$/);
  assert.match(await browser.text('h1'), /^two_stage:tile_s1_m\d+n\d+k\d+_t2_panel16_avx512bf16$/);
  assert.match(await browser.text('.sub'), /^gather\+gemm1\+act · 16 tokens on cpu-znver4\/2 · H 2048/);
  assert.match(await browser.text('main'), /canary 1\.00× its minimum/);
  await saveScreenshot(browser, 'step');
  await opened(browser, base + '#/task/5', '.race canvas');
  await browser.click('.racegrid a .race');
  await until('the samples of a pipeline', async () => {
    if ((await browser.count('.samples')) === 0) return false;
    return /^20 samples|^30 samples/.test(await label(browser, '.samples'));
  });
  assert.equal(await browser.count('h1 a[href^="#/step/"]'), 4);
  await opened(browser, base + '#/shapes', '[data-ladder]');
  await drawn(browser, '.ladder canvas');
  assert.match(await label(browser, '.ladder'), /^time by token count, from \d/);
  assert.equal(await browser.count('[data-ladder="2048"] .scroll tbody tr'), 7);
  assert.match(await browser.text('[data-ladder="4096"] .scroll tbody tr:nth-child(4)'), /probing/);
  await saveScreenshot(browser, 'shapes');
  await browser.click('[data-ladder="2048"] .scroll tbody tr:nth-child(5) a');
  await until('the task', async () => (await browser.run('return location.hash')) === '#/task/5');
  await opened(browser, base + '#/quarantine', '.why li');
  assert.match(await browser.text('.why'), /Segmentation fault/);
  const markup = encodeURIComponent('<img src=x onerror="window.owned=true">');
  for (const path of ['releases?name=first', 'releases?name=second&batch=1',
    'channels/stable/stage?release=1&reason=' + markup, 'channels/stable/approve?release=1',
    'channels/stable/stage?release=2', 'channels/beta/stage?release=2',
    'channels/beta/unstage?release=2&reason=early']) {
    const { status } = await fetch(base + 'api/v1/' + path, { method: 'POST' });
    assert.equal(Math.floor(status / 100), 2, path);
  }
  await opened(browser, base + '#/task/13', 'main h1');
  await until('an end without a ranking',
    async () => /No ranking: the task ended before/.test(await browser.text('main')));

  await opened(browser, base + '#/releases', 'tr[data-release="2"]');
  assert.match(await browser.text('tr[data-release="1"]'), /#1 first[^]*stable[^]*8/);
  await until('the channel',
    async () => /#1 first[^]*#2 second[^]*staged #2/.test(await browser.text('tr[data-channel="stable"]')));
  await until('the unstaged release',
    async () => /unstaged #2, [^]*: early[^]*staged #2/.test(await browser.text('tr[data-channel="beta"]')));
  await saveScreenshot(browser, 'releases');
  assert.deepEqual(await browser.consoleErrors(), []);
  return { base, server };
}

// Every view shows texts from users and workers as text, never as markup.
async function onHostile(browser, base, server) {
  await opened(browser, base, 'tr[data-batch]');
  server.stdin.write('hostile\n');
  await until('the hostile name', async () => /<img src=x/.test(await browser.text('main')));
  const views = [['', 'tr[data-batch]'], ['#/batch/2', 'tr[data-task]'], ['#/task/5', '.why .reason'],
    ['#/task/13', 'main'], ['#/step/1?task=1', '.samples canvas'], ['#/pipeline/1', '.samples canvas'],
    ['#/workers', '[data-worker]'], ['#/shapes', '.ladder canvas'], ['#/quarantine', '.why li'],
    ['#/releases', 'tr[data-channel]']];
  for (const [hash, selector] of views) {
    await opened(browser, base + hash, selector);
    if (hash !== '#/shapes') await until(`the text on ${hash}`,
      async () => /<img src=x onerror="window.owned=true">/.test(await browser.text('main')));
    assert.equal(await browser.count('main img, main b > *, [onerror]'), 0, `${hash} has injected markup`);
    assert.equal(await browser.run('return window.owned === true'), false, `${hash} ran an injected script`);
    await saveScreenshot(browser, 'hostile-' + hash.replace(/\W+/g, '-'));
  }
  assert.deepEqual(await browser.consoleErrors(), []);
}

// No view is wider than the screen of a phone.
async function onPhone(base) {
  const browser = await openBrowser({ width: 390, height: 800, dark: true });
  try {
    const views = [['home', '', 'tr[data-batch]'], ['batch', '#/batch/2', 'tr[data-task]'],
      ['task', '#/task/5', '.race canvas'], ['step', '#/step/1?task=1', '.samples canvas'],
      ['workers', '#/workers', '[data-worker]'], ['shapes', '#/shapes', '.ladder canvas'],
      ['quarantine', '#/quarantine', '.why li'], ['releases', '#/releases', 'tr[data-channel]']];
    for (const [name, hash, selector] of views) {
      await opened(browser, base + hash, selector);
      const scrollWidth = await browser.run('return document.documentElement.scrollWidth');
      assert.equal(scrollWidth, 390, `${name} is wider than the window`);
      await saveScreenshot(browser, 'phone-' + name);
    }
    // Plots follow the colour scheme, even if it changes after they were drawn.
    await opened(browser, base + '#/step/1?task=1', '.samples canvas');
    await drawn(browser, '.samples canvas');
    const dark = await ink(browser, '.samples canvas');
    await browser.scheme('light');
    await until('ink of the light scheme',
      async () => Math.abs((await ink(browser, '.samples canvas')).light - dark.light) > 20);
  } finally {
    await browser.close();
  }
}

// The farm requires access tokens. The page asks for a token. Neither the scripts nor the URL may ever
// contain the token.
async function withTokens(browser, folder) {
  const port = join(folder, 'guarded-port'), state = join(folder, 'guarded');
  const ports = await startMoefarmd(port, ['--tokens', '--state', state, '--hub', '127.0.0.1:0']);
  const base = `http://127.0.0.1:${ports.http}/`;
  const token = readFileSync(join(state, 'admin.token'), 'utf8').trim();
  await opened(browser, base, '#sign-in');
  await browser.type('#token', token.slice(0, -1) + (token.endsWith('0') ? '1' : '0'));
  await browser.click('#sign-in button');
  await until('the refusal', async () => /unknown, expired or revoked/.test(await browser.text('#sign-in')));
  await saveScreenshot(browser, 'sign-in');
  await browser.type('#token', token);
  await browser.click('#sign-in button');
  await until('the batches', async () => /No batch yet/.test(await browser.text('main')));
  await until('the live mark', async () => (await browser.text('#live')) === 'live');
  assert.equal(await browser.count('#sign-in'), 0);
  const secret = token.split('_')[2];
  const seen = await browser.run(`return [document.cookie, location.href, document.documentElement.outerHTML,
    JSON.stringify(sessionStorage), JSON.stringify(localStorage)].join(" ")`);
  assert.ok(!seen.includes(secret));
  await opened(browser, base + '#/workers', '#sign-out'); // signed in: a reload does not ask for a token
  assert.match(await browser.text('main'), /Workers/);
  assert.equal(await browser.count('#sign-in'), 0);
  await browser.click('#sign-out');
  await until('the sign-in form', async () => (await browser.count('#sign-in')) === 1);
  assert.deepEqual((await browser.consoleErrors()).filter((m) => !/ 401 /.test(m)), []);
}

async function onFarm(browser, folder) {
  const port = join(folder, 'port');
  const ports = await startMoefarmd(port, ['--state', join(folder, 'state'), '--hub', 'tcp://127.0.0.1:0']);
  const base = `http://127.0.0.1:${ports.http}/`;

  await opened(browser, base, '.note');
  await mark(browser);
  assert.match(await browser.text('main'), /No batch yet/);
  const row = (token) => `${token},2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,` +
    'torch.bfloat16,QuantType.No,1,0\n';
  const header = 'token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,use_g1u1,' +
    'doweight_stage1\n';
  const table = header + Array.from({ length: 24 }, (_, i) => row(i + 1)).join('') + row('many');
  const name = '<img src=x onerror="window.marked = false">';
  const url = `${base}api/v1/batches?name=${encodeURIComponent(name)}&classes=sim-page/8&regret=none`;
  const answer = await fetch(url, { method: 'POST', headers: { 'Content-Type': 'text/csv' }, body: table });
  assert.equal(answer.status, 201);
  await until('the batch on the page', async () => (await browser.count('tr[data-batch="1"]')) === 1);
  assert.equal(await browser.text('tr[data-batch="1"] a'), name);
  await until('the reason for waiting',
    async () => /sim-page\/8/.test(await browser.text('tr[data-batch="1"]')));

  // Slow steps, so that the page shows progress even on a busy machine.
  const spec = join(folder, 'slow.json');
  writeFileSync(spec, JSON.stringify({ step_ms: 1 }));
  child(join(build, 'worker/moefarm-worker'), [
    '--coordinator', `tcp://127.0.0.1:${ports.hub}`, '--device', `sim:sim-page/8:0:${spec}`,
    '--sim-workers', '2', '--name', 'page', '--spool', join(folder, 'spool'), '--lock-dir', folder,
    '--log-level', 'error',
  ], /$^/).ready.catch(() => {});
  const seen = new Set();
  await until('the batch to be done', async () => {
    seen.add(await browser.text('tr[data-batch="1"] .measured'));
    return /done/.test(await browser.text('tr[data-batch="1"]'));
  }, 60000);
  assert.ok(seen.size >= 2, `no progress was shown: ${[...seen].join(', ')}`);
  await until('the workers', async () => (await browser.count('[data-worker]')) === 2);
  assert.equal(await marked(browser), true);

  await opened(browser, base + '#/batch/1', 'tr[data-task="1"]');
  assert.match(await browser.text('.sub'), /consumer moefarm .* regret none/);
  await drawn(browser, '.timeline canvas');
  const { steps } = await (await fetch(base + 'api/v1/batches/1')).json();
  assert.match(await label(browser, '.timeline'), new RegExp(`^${steps} steps measured`));
  assert.match(await browser.text('main'),
    /H 2048 · I 96 · 128 experts, top 8 · bfloat16 · Silu — sim-page\/8: weight layout/);
  assert.equal(await browser.run(`const main = document.querySelector("main");
    main.focus({ preventScroll: true });
    return getComputedStyle(main).outlineStyle`), 'none');
  await opened(browser, base + '#/task/1', '.ranked li.winner');
  assert.ok((await browser.count('.ranked .bar > a')) > 4);
  await drawn(browser, '.race canvas');
  assert.match(await label(browser, '.race'), /^\d\d+ rounds/);
  await until('a reason', async () => (await browser.text('.why') || '').length > 40 ||
    (await browser.run(`return [...document.querySelectorAll("section")]
      .some((s) => /No kernel was rejected/.test(s.textContent))`)));
  await saveScreenshot(browser, 'farm-task');
  assert.deepEqual(await browser.consoleErrors(), []);
}

const folder = mkdtempSync(join(tmpdir(), 'moefarm-page-'));
let browser;
try {
  browser = await openBrowser();
  const { base, server } = await onFixture(browser);
  await onPhone(base);
  await onHostile(browser, base, server);
  await withTokens(browser, folder);
  await onFarm(browser, folder);
  console.log('the page renders and updates');
} finally {
  if (browser) await browser.close();
  for (const c of children) c.kill();
  const exited = (c) => c.exitCode !== null || c.signalCode !== null ||
    new Promise((resolve) => c.once('exit', resolve));
  await Promise.all(children.map(exited));
  rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
}
