// The status page in a real browser: first on the fixture's farm, where every view has something to show, then on a whole farm
// (moefarmd and simulated workers), from an empty page to a finished batch, without a reload.
//
//   node page.mjs BUILD_FOLDER [SCREENSHOT_FOLDER]
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { missing, openBrowser, start, until } from './driver.mjs';

const [build, shots] = process.argv.slice(2);
if (missing().length) {
  console.log(`skipped: ${missing().join(' and ')} missing; they are Debian's packages chromium and chromium-driver`);
  process.exit(77);
}

const children = [];
function child(...args) {
  const c = start(...args);
  children.push(c.child);
  return c;
}

async function look(browser, name) {
  if (shots) writeFileSync(join(shots, name + '.png'), await browser.screenshot());
}

// Marks the document: the mark is gone after a reload.
const mark = (browser) => browser.run('window.marked = true');
const marked = (browser) => browser.run('return window.marked === true');
// Each section of a view fetches for itself: it is there when all have drawn.
const opened = (browser, url, selector) => browser.go(url).then(() => until(`${selector} of ${url}`, async () => (await browser.count(selector)) > 0 && (await browser.count('main > div:empty, main > section > div:empty')) === 0));

// What a canvas shows: the share of its points with ink on them, and how bright the ink is, from 0 to 255.
const ink = (browser, selector) => browser.run(`const c = document.querySelector(arguments[0]), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
  let n = 0, light = 0;
  for (let i = 0; i < d.length; i += 4) if (d[i + 3] > 40) { n++; light += (d[i] + d[i + 1] + d[i + 2]) / 3; }
  return { share: 4 * n / d.length, light: n ? light / n : 0 };`, selector);
const drawn = (browser, selector) => until(`ink in ${selector}`, async () => (await browser.count(selector)) > 0 && (await ink(browser, selector)).share > 0.0005);
const says = (browser, selector) => browser.run('return document.querySelector(arguments[0]).getAttribute("aria-label")', selector);

async function onFixture(browser) {
  const { child: server, ready } = child(join(build, 'tests/page_fixture'), [], /port (\d+)/);
  const base = `http://127.0.0.1:${(await ready)[1]}/`;

  await opened(browser, base, 'tr[data-batch]');
  await until('the live mark', async () => (await browser.text('#live')) === 'live');
  assert.equal(await browser.count('tr[data-batch]'), 3);
  assert.equal(await browser.count('[data-worker]'), 5);
  assert.match(await browser.text('tr[data-batch="3"]'), /no worker of the class gfx942\/304/);
  await look(browser, 'home');

  // Progress comes by itself.
  await opened(browser, base + '#/batch/2', 'tr[data-task="10"]');
  await mark(browser);
  const before = await browser.text('tr[data-task="10"] .measured');
  const width = () => browser.run('return document.querySelector(\'tr[data-task="10"] .progress i\').style.width');
  const widthBefore = await width();
  server.stdin.write('progress\n');
  await until('more steps than ' + before, async () => (await browser.text('tr[data-task="10"] .measured')) !== before);
  assert.notEqual(await width(), widthBefore);
  assert.match(await browser.text('tr[data-task="13"]'), /every step that covers gemm2 failed/);
  await drawn(browser, '.timeline canvas');
  assert.match(await says(browser, '.timeline'), /^\d+ steps measured, at most \d+\.\d a second$/);
  await look(browser, 'batch');
  server.stdin.write('finish\n');
  await until('the batch to be done', async () => /done/.test(await browser.text('.tiles')));
  assert.equal(await marked(browser), true);

  // A task: bars, ties, race, reasons, filters.
  await opened(browser, base + '#/task/5', '.ranked li');
  assert.match(await browser.text('.promotion'), /kept: beside the known row it is SAME on node-a-cpu0.*known from line 7 of the baseline/);
  await until('the race', async () => (await browser.count('.race canvas')) === 8);
  await drawn(browser, '.race canvas');
  assert.match(await says(browser, '.race'), /^30 rounds, median 2\d\d\.\d µs$/);
  // The pointer on one row is a round in all of them, and a row that was dropped before it says nothing.
  const notes = () => browser.run('return [...document.querySelectorAll(".racegrid .what .small:not(.dropped)")].map((e) => e.textContent)');
  const apart = await notes();
  assert.equal(apart[0], 'winner');
  await browser.point('.race .u-over', 0.5);
  await until('a round', async () => /^round 15|^round 16/.test((await notes())[0]));
  const told = await notes();
  assert.match(told[1], /^round 1[56]: 2\d\d\.\d µs$/);
  assert.equal(told.at(-1), apart.at(-1));
  await until('the reasons', async () => (await browser.count('.why .reason')) > 4);
  assert.equal(await browser.count('.ranked li.winner'), 1);
  assert.equal(await browser.count('.ranked li:first-child.winner .bar > a'), 4);
  assert.match(await browser.text('.ranked li:nth-child(2)'), /tie/);
  assert.match(await browser.text('.ranked li:nth-child(5)'), /dropped after round 10/);
  assert.match(await browser.text('.why'), /oneDNN's matmul takes bf16/);
  const tiles = await browser.text('.tiles');
  assert.equal(await browser.count('.tiles a[href^="#/pipeline/"]'), 6);
  assert.equal(await browser.run('return [...document.querySelectorAll("section table td.n")].filter((td) => /µs|ms/.test(td.textContent) && !td.querySelector("a")).length'), 0);
  assert.match(tiles, /Tie set\s*#\d+\s*30 rounds/);
  assert.match(tiles, /Under balanced\s*no regret/);
  assert.match(tiles, /Under zipf:1\.2\s*\+6\.\d+\s?%/);
  await look(browser, 'task');
  // The answer to the first letter comes last: what is shown is still the answer to the whole word.
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
  await browser.run('const s = document.querySelector("select"); s.value = "slow"; s.dispatchEvent(new Event("change"));');
  await until('slow steps only', async () => {
    const all = await browser.run('return [...document.querySelectorAll("section table tbody tr")].map((r) => r.querySelector(".badge").textContent)');
    return all.length > 0 && all.every((t) => t === 'slow');
  });

  // Every number leads to its samples.
  await browser.click('.ranked li:first-child .bar a:nth-child(2)');
  await drawn(browser, '.samples canvas');
  assert.match(await says(browser, '.samples'), /^20 samples from/);
  assert.match(await browser.run('return location.hash'), /^#\/step\/\d+\?task=5$/);
  assert.match(await browser.text('h1'), /^tile:tile_s1_m\d+n\d+k\d+_t2_panel16_avx512bf16$/);
  assert.match(await browser.text('.sub'), /^gather\+gemm1\+act · 16 tokens on cpu-znver4\/2 · H 2048/);
  assert.match(await browser.text('main'), /canary at 1\.00 of its calm time/);
  await look(browser, 'step');
  await opened(browser, base + '#/task/5', '.race canvas');
  await browser.click('.racegrid a .race');
  await until('the samples of a pipeline', async () => /^20 samples|^30 samples/.test((await browser.count('.samples')) ? await says(browser, '.samples') : ''));
  assert.equal(await browser.count('h1 a[href^="#/step/"]'), 4);
  await opened(browser, base + '#/shapes', '[data-ladder]');
  await drawn(browser, '.ladder canvas');
  assert.match(await says(browser, '.ladder'), /^time by tokens, from \d/);
  assert.equal(await browser.count('[data-ladder="2048"] .scroll tbody tr'), 7);
  assert.match(await browser.text('[data-ladder="4096"] .scroll tbody tr:nth-child(4)'), /probing/);
  await look(browser, 'shapes');
  await browser.click('[data-ladder="2048"] .scroll tbody tr:nth-child(5) a');
  await until('the task', async () => (await browser.run('return location.hash')) === '#/task/5');
  await opened(browser, base + '#/quarantine', '.why li');
  assert.match(await browser.text('.why'), /Segmentation fault/);
  for (const path of ['releases?name=first', 'releases?name=second&batch=1', 'channels/stable/stage?release=1&reason=' + encodeURIComponent('<img src=x onerror="window.owned=true">'), 'channels/stable/approve?release=1', 'channels/stable/stage?release=2', 'channels/beta/stage?release=2', 'channels/beta/unstage?release=2&reason=early'])
    assert.equal(Math.floor((await fetch(base + 'api/v1/' + path, { method: 'POST' })).status / 100), 2, path);
  await opened(browser, base + '#/task/13', 'main h1');
  await until('an end without a ranking', async () => /Nothing was ranked: the task ended before/.test(await browser.text('main')));

  await opened(browser, base + '#/releases', 'tr[data-release="2"]');
  assert.match(await browser.text('tr[data-release="1"]'), /#1 first[^]*stable[^]*8/);
  await until('the channel', async () => /#1 first[^]*#2 second[^]*staged #2/.test(await browser.text('tr[data-channel="stable"]')));
  await until('what was taken back', async () => /unstaged #2, [^]*: early[^]*staged #2/.test(await browser.text('tr[data-channel="beta"]')));
  await look(browser, 'releases');
  assert.deepEqual(await browser.complaints(), []);
  return { base, server };
}

// What a person or a worker wrote is text on every view, whatever it looks like.
async function onHostile(browser, base, server) {
  await opened(browser, base, 'tr[data-batch]');
  server.stdin.write('hostile\n');
  await until('the hostile name', async () => /<img src=x/.test(await browser.text('main')));
  for (const [hash, selector] of [['', 'tr[data-batch]'], ['#/batch/2', 'tr[data-task]'], ['#/task/5', '.why .reason'], ['#/task/13', 'main'], ['#/step/1?task=1', '.samples canvas'], ['#/pipeline/1', '.samples canvas'], ['#/workers', '[data-worker]'], ['#/shapes', '.ladder canvas'], ['#/quarantine', '.why li'], ['#/releases', 'tr[data-channel]']]) {
    await opened(browser, base + hash, selector);
    if (hash !== '#/shapes') await until(`the text on ${hash}`, async () => /<img src=x onerror="window.owned=true">/.test(await browser.text('main')));
    assert.equal(await browser.count('main img, main b > *, [onerror]'), 0, `${hash} has markup of somebody's`);
    assert.equal(await browser.run('return window.owned === true'), false, `${hash} ran somebody's script`);
    await look(browser, 'hostile-' + hash.replace(/\W+/g, '-'));
  }
  assert.deepEqual(await browser.complaints(), []);
}

// Nothing is wider than a phone.
async function onPhone(base) {
  const browser = await openBrowser({ width: 390, height: 800, dark: true });
  try {
    for (const [name, hash, selector] of [['home', '', 'tr[data-batch]'], ['batch', '#/batch/2', 'tr[data-task]'], ['task', '#/task/5', '.race canvas'], ['step', '#/step/1?task=1', '.samples canvas'], ['workers', '#/workers', '[data-worker]'], ['shapes', '#/shapes', '.ladder canvas'], ['quarantine', '#/quarantine', '.why li'], ['releases', '#/releases', 'tr[data-channel]']]) {
      await opened(browser, base + hash, selector);
      assert.equal(await browser.run('return document.documentElement.scrollWidth'), 390, `${name} is wider than the window`);
      await look(browser, 'phone-' + name);
    }
    // A plot has the colours of the screen that it is on, also when that changes.
    await opened(browser, base + '#/step/1?task=1', '.samples canvas');
    await drawn(browser, '.samples canvas');
    const dark = await ink(browser, '.samples canvas');
    await browser.scheme('light');
    await until('dark ink', async () => (await ink(browser, '.samples canvas')).light > dark.light + 20 || (await ink(browser, '.samples canvas')).light < dark.light - 20);
  } finally {
    await browser.close();
  }
}

// A farm that asks for tokens: the page asks for one, and neither a script nor an address ever has it.
async function onGuarded(browser, folder) {
  const port = join(folder, 'guarded-port'), state = join(folder, 'guarded');
  child(join(build, 'server/moefarmd'), ['--tokens', '--state', state, '--http', '127.0.0.1:0', '--hub', '127.0.0.1:0', '--port-file', port, '--log-level', 'error'], /$^/).ready.catch(() => {});
  const ports = await until('moefarmd', () => Object.fromEntries(readFileSync(port, 'utf8').trim().split('\n').map((l) => l.split('='))));
  const base = `http://127.0.0.1:${ports.http}/`, token = readFileSync(join(state, 'admin.token'), 'utf8').trim();
  await opened(browser, base, '#sign-in');
  await browser.type('#token', token.slice(0, -1) + (token.endsWith('0') ? '1' : '0'));
  await browser.click('#sign-in button');
  await until('the refusal', async () => /unknown, expired or revoked/.test(await browser.text('#sign-in')));
  await look(browser, 'sign-in');
  await browser.type('#token', token);
  await browser.click('#sign-in button');
  await until('the batches', async () => /No batch yet/.test(await browser.text('main')));
  await until('the live mark', async () => (await browser.text('#live')) === 'live');
  assert.equal(await browser.count('#sign-in'), 0);
  const secret = token.split('_')[2];
  const seen = await browser.run('return [document.cookie, location.href, document.documentElement.outerHTML, JSON.stringify(sessionStorage), JSON.stringify(localStorage)].join(" ")');
  assert.ok(!seen.includes(secret));
  await opened(browser, base + '#/workers', '#sign-out'); // a reload needs no token
  assert.match(await browser.text('main'), /Workers/);
  assert.equal(await browser.count('#sign-in'), 0);
  await browser.click('#sign-out');
  await until('the form again', async () => (await browser.count('#sign-in')) === 1);
  assert.deepEqual((await browser.complaints()).filter((m) => !/ 401 /.test(m)), []);
}

async function onFarm(browser, folder) {
  const port = join(folder, 'port');
  child(join(build, 'server/moefarmd'), ['--state', join(folder, 'state'), '--http', '127.0.0.1:0', '--hub', 'tcp://127.0.0.1:0', '--port-file', port, '--log-level', 'error'], /$^/).ready.catch(() => {});
  const ports = await until('moefarmd', () => Object.fromEntries(readFileSync(port, 'utf8').trim().split('\n').map((l) => l.split('='))));
  const base = `http://127.0.0.1:${ports.http}/`;

  await opened(browser, base, '.note');
  await mark(browser);
  assert.match(await browser.text('main'), /No batch yet/);
  const row = (token) => `${token},2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0\n`;
  const table = 'token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,use_g1u1,doweight_stage1\n' + Array.from({ length: 24 }, (_, i) => row(i + 1)).join('') + row('many');
  const name = '<img src=x onerror="window.marked = false">';
  const answer = await fetch(`${base}api/v1/batches?name=${encodeURIComponent(name)}&classes=sim-page/8&regret=none`, { method: 'POST', headers: { 'Content-Type': 'text/csv' }, body: table });
  assert.equal(answer.status, 201);
  await until('the batch on the page', async () => (await browser.count('tr[data-batch="1"]')) === 1);
  assert.equal(await browser.text('tr[data-batch="1"] a'), name);
  await until('what it waits for', async () => /sim-page\/8/.test(await browser.text('tr[data-batch="1"]')));

  // Steps that take their time, so that the batch is seen on its way however busy this machine is.
  const spec = join(folder, 'slow.json');
  writeFileSync(spec, JSON.stringify({ step_ms: 1 }));
  child(join(build, 'worker/moefarm-worker'), ['--coordinator', `tcp://127.0.0.1:${ports.hub}`, '--device', `sim:sim-page/8:0:${spec}`, '--sim-workers', '2', '--name', 'page', '--spool', join(folder, 'spool'), '--lock-dir', folder, '--log', 'error'], /$^/).ready.catch(() => {});
  const seen = new Set();
  await until('the batch to be done', async () => {
    seen.add(await browser.text('tr[data-batch="1"] .measured'));
    return /done/.test(await browser.text('tr[data-batch="1"]'));
  }, 60000);
  assert.ok(seen.size >= 2, `progress went by unseen: ${[...seen].join(', ')}`);
  await until('the workers', async () => (await browser.count('[data-worker]')) === 2);
  assert.equal(await marked(browser), true);

  await opened(browser, base + '#/batch/1', 'tr[data-task="1"]');
  assert.match(await browser.text('.sub'), /consumer moefarm .* regret none/);
  await drawn(browser, '.timeline canvas');
  const { steps } = await (await fetch(base + 'api/v1/batches/1')).json();
  assert.match(await says(browser, '.timeline'), new RegExp(`^${steps} steps measured`));
  assert.match(await browser.text('main'), /H 2048 · I 96 · 128 experts, top 8 · bfloat16 · Silu — sim-page\/8: weight layout/);
  assert.equal(await browser.run('document.querySelector("main").focus({ preventScroll: true }); return getComputedStyle(document.querySelector("main")).outlineStyle'), 'none');
  await opened(browser, base + '#/task/1', '.ranked li.winner');
  assert.ok((await browser.count('.ranked .bar > a')) > 4);
  await drawn(browser, '.race canvas');
  assert.match(await says(browser, '.race'), /^\d\d+ rounds/);
  await until('a reason', async () => (await browser.text('.why') || '').length > 40 || (await browser.run('return [...document.querySelectorAll("section")].some((s) => /Nothing was refused/.test(s.textContent))')));
  await look(browser, 'farm-task');
  assert.deepEqual(await browser.complaints(), []);
}

const folder = mkdtempSync(join(tmpdir(), 'moefarm-page-'));
let browser;
try {
  browser = await openBrowser();
  const { base, server } = await onFixture(browser);
  await onPhone(base);
  await onHostile(browser, base, server);
  await onGuarded(browser, folder);
  await onFarm(browser, folder);
  console.log('the page renders and follows');
} finally {
  if (browser) await browser.close();
  for (const c of children) c.kill();
  await Promise.all(children.map((c) => c.exitCode !== null || c.signalCode !== null || new Promise((resolve) => c.once('exit', resolve))));
  rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
}
