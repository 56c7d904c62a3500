// A browser to look at the page with: Debian's chromium, driven by chromedriver over the WebDriver protocol (plain HTTP and
// JSON), with nothing but Node. Every wait polls with a deadline.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, existsSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const ELEMENT = 'element-6066-11e4-a52e-4f735466cecf';
export const chromium = '/usr/bin/chromium', chromedriver = '/usr/bin/chromedriver';
export const missing = () => [chromium, chromedriver].filter((f) => !existsSync(f));

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Polls until f gives something true; the error names what was waited for.
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
  throw new Error(`waited ${ms} ms for ${what}; last: ${last instanceof Error ? last.message : JSON.stringify(last)}`);
}

// A child whose first line of output that matches says where it listens.
export function start(command, args, pattern, options = {}) {
  // In a process group of its own: a test program that is told to end tells its whole group.
  const child = spawn(command, args, { stdio: ['pipe', 'pipe', 'inherit'], detached: true, ...options });
  const ready = new Promise((resolve, reject) => {
    let text = '';
    child.stdout.on('data', (data) => {
      text += data;
      const match = pattern.exec(text);
      if (match) resolve(match);
    });
    child.on('exit', (code) => reject(new Error(`${command} ended with ${code} before it was ready: ${text}`)));
    child.on('error', reject);
  });
  return { child, ready };
}

export async function openBrowser({ width = 1280, height = 900, dark = false } = {}) {
  const profile = mkdtempSync(join(tmpdir(), 'moefarm-browser-'));
  const { child, ready } = start(chromedriver, ['--port=0'], /started successfully on port (\d+)/);
  const base = `http://127.0.0.1:${(await ready)[1]}`;
  const call = async (method, path, body) => {
    const response = await fetch(base + path, { method, body: body && JSON.stringify(body), headers: { 'Content-Type': 'application/json' } });
    const { value } = await response.json();
    if (!response.ok) throw new Error(`${value.error}: ${value.message.split('\n')[0]}`);
    return value;
  };
  const args = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage', '--hide-scrollbars', `--user-data-dir=${profile}`, `--window-size=${width},${height}`];
  const session = (await call('POST', '/session', { capabilities: { alwaysMatch: { browserName: 'chrome', 'goog:loggingPrefs': { browser: 'ALL' }, 'goog:chromeOptions': { binary: chromium, args } } } })).sessionId;
  const s = `/session/${session}`;
  const cdp = (cmd, params) => call('POST', `${s}/goog/cdp/execute`, { cmd, params });
  await cdp('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: 1, mobile: width < 600 });
  const scheme = (value) => cdp('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value }] });
  await scheme(dark ? 'dark' : 'light');
  return {
    scheme,
    go: (url) => call('POST', `${s}/url`, { url }),
    run: (script, ...list) => call('POST', `${s}/execute/sync`, { script, args: list }),
    text: (selector) => call('POST', `${s}/execute/sync`, { script: 'const e = document.querySelector(arguments[0]); return e && e.innerText;', args: [selector] }),
    count: (selector) => call('POST', `${s}/execute/sync`, { script: 'return document.querySelectorAll(arguments[0]).length;', args: [selector] }),
    async click(selector) {
      const found = await call('POST', `${s}/element`, { using: 'css selector', value: selector });
      await call('POST', `${s}/execute/sync`, { script: 'arguments[0].scrollIntoView({ block: "center" });', args: [found] });
      await call('POST', `${s}/element/${found[ELEMENT]}/click`, {});
    },
    // The pointer goes over an element, that share of its width from the left.
    async point(selector, share) {
      const at = await call('POST', `${s}/execute/sync`, { script: 'const e = document.querySelector(arguments[0]); e.scrollIntoView({ block: "center" }); const r = e.getBoundingClientRect(); return { x: Math.round(r.left + r.width * arguments[1]), y: Math.round(r.top + r.height / 2) };', args: [selector, share] });
      await call('POST', `${s}/actions`, { actions: [{ type: 'pointer', id: 'mouse', actions: [{ type: 'pointerMove', duration: 0, x: at.x - 2, y: at.y }, { type: 'pointerMove', duration: 50, x: at.x, y: at.y }] }] });
    },
    async type(selector, text) {
      const found = await call('POST', `${s}/element`, { using: 'css selector', value: selector });
      await call('POST', `${s}/element/${found[ELEMENT]}/value`, { text });
    },
    // What the page complained of: errors of scripts, refused styles, failed requests.
    complaints: async () => (await call('POST', `${s}/se/log`, { type: 'browser' })).filter((e) => e.level === 'SEVERE' || /Content Security Policy/.test(e.message)).map((e) => e.message),
    // As PNG: the whole page, or from y on so many pixels of it.
    async screenshot(y = 0, rows = 0) {
      const size = await call('POST', `${s}/execute/sync`, { script: 'return document.documentElement.scrollHeight;', args: [] });
      const { data } = await cdp('Page.captureScreenshot', { captureBeyondViewport: true, clip: { x: 0, y, width, height: rows || size, scale: 1 } });
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
