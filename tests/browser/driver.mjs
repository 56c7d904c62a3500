// Controls Debian's chromium through chromedriver, by the WebDriver protocol (HTTP and JSON) and without
// further Node packages. Every wait polls with a deadline.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, existsSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const ELEMENT = 'element-6066-11e4-a52e-4f735466cecf';
export const chromium = '/usr/bin/chromium', chromedriver = '/usr/bin/chromedriver';
export const missing = () => [chromium, chromedriver].filter((f) => !existsSync(f));

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Polls f until it returns a true value, and returns that value. `what` names the awaited event in the error
// message after a timeout.
export async function until(what, f, ms = 20000) {
  const end = Date.now() + ms;
  let last;
  do {
    try {
      last = await f();
      if (last) return last;
    } catch (error) {
      last = error;
    }
    await sleep(50);
  } while (Date.now() < end);
  const state = last instanceof Error ? last.message : JSON.stringify(last);
  throw new Error(`waited ${ms} ms for ${what}; last: ${state}`);
}

// Starts a child process. The promise `ready` resolves to the first match of `pattern` in the process's
// output, for example its port.
export function start(command, args, pattern, options = {}) {
  // The child has its own process group, because a test program forwards a termination signal to its group.
  const child = spawn(command, args, { stdio: ['pipe', 'pipe', 'inherit'], detached: true, ...options });
  const ready = new Promise((resolve, reject) => {
    let text = '';
    child.stdout.on('data', (data) => {
      text += data;
      const match = pattern.exec(text);
      if (match) resolve(match);
    });
    child.on('exit', (code) => {
      reject(new Error(`${command} exited with ${code} before it was ready: ${text}`));
    });
    child.on('error', reject);
  });
  return { child, ready };
}

export async function openBrowser({ width = 1280, height = 900, dark = false } = {}) {
  const profile = mkdtempSync(join(tmpdir(), 'moefarm-browser-'));
  const { child, ready } = start(chromedriver, ['--port=0'], /started successfully on port (\d+)/);
  const base = `http://127.0.0.1:${(await ready)[1]}`;
  const call = async (method, path, body) => {
    const headers = { 'Content-Type': 'application/json' };
    const response = await fetch(base + path, { method, body: body && JSON.stringify(body), headers });
    const { value } = await response.json();
    if (!response.ok) throw new Error(`${value.error}: ${value.message.split('\n')[0]}`);
    return value;
  };
  const args = [
    '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
    '--disable-background-networking', '--disable-component-update', '--disable-sync',
    '--disable-dev-shm-usage', '--hide-scrollbars', `--user-data-dir=${profile}`,
    `--window-size=${width},${height}`,
  ];
  const alwaysMatch = {
    browserName: 'chrome',
    'goog:loggingPrefs': { browser: 'ALL' },
    'goog:chromeOptions': { binary: chromium, args },
  };
  const { sessionId } = await call('POST', '/session', { capabilities: { alwaysMatch } });
  const s = `/session/${sessionId}`;
  const run = (script, ...list) => call('POST', `${s}/execute/sync`, { script, args: list });
  const cdp = (cmd, params) => call('POST', `${s}/goog/cdp/execute`, { cmd, params });
  const metrics = { width, height, deviceScaleFactor: 1, mobile: width < 600 };
  await cdp('Emulation.setDeviceMetricsOverride', metrics);
  const scheme = (value) => {
    return cdp('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value }] });
  };
  await scheme(dark ? 'dark' : 'light');
  return {
    scheme,
    go: (url) => call('POST', `${s}/url`, { url }),
    run,
    text: (selector) => run(`const e = document.querySelector(arguments[0]);
      return e && e.innerText;`, selector),
    count: (selector) => run('return document.querySelectorAll(arguments[0]).length;', selector),
    async click(selector) {
      const found = await call('POST', `${s}/element`, { using: 'css selector', value: selector });
      await run('arguments[0].scrollIntoView({ block: "center" });', found);
      await call('POST', `${s}/element/${found[ELEMENT]}/click`, {});
    },
    // Moves the pointer over an element, to the given fraction of its width.
    async point(selector, fraction) {
      const at = await run(`const e = document.querySelector(arguments[0]);
        e.scrollIntoView({ block: "center" });
        const r = e.getBoundingClientRect();
        return { x: Math.round(r.left + r.width * arguments[1]), y: Math.round(r.top + r.height / 2) };`,
      selector, fraction);
      const moves = [
        { type: 'pointerMove', duration: 0, x: at.x - 2, y: at.y },
        { type: 'pointerMove', duration: 50, x: at.x, y: at.y },
      ];
      await call('POST', `${s}/actions`, { actions: [{ type: 'pointer', id: 'mouse', actions: moves }] });
    },
    async type(selector, text) {
      const found = await call('POST', `${s}/element`, { using: 'css selector', value: selector });
      await call('POST', `${s}/element/${found[ELEMENT]}/value`, { text });
    },
    // Returns serious console messages: script errors, styles that the content security policy blocks, and
    // failed requests.
    async consoleErrors() {
      const log = await call('POST', `${s}/se/log`, { type: 'browser' });
      const serious = log.filter((e) => e.level === 'SEVERE' || /Content Security Policy/.test(e.message));
      return serious.map((e) => e.message);
    },
    // Returns a PNG of the whole page. If `rows` is not 0, the PNG has that many pixel rows, from row y on.
    async screenshot(y = 0, rows = 0) {
      const size = await run('return document.documentElement.scrollHeight;');
      const clip = { x: 0, y, width, height: rows || size, scale: 1 };
      const { data } = await cdp('Page.captureScreenshot', { captureBeyondViewport: true, clip });
      return Buffer.from(data, 'base64');
    },
    async close() {
      try {
        await call('DELETE', s);
      } finally {
        child.kill();
        rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
      }
    },
  };
}
