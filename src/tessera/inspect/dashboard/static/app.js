// @ts-check
/**
 * The page: which view is shown, what stands above it, and what keys do. Data and place come in, `update` shows them; changes
 * that arrive together are shown together, in the next frame.
 */

import { hasToken, saveToken, takeToken } from './api.js';
import { emptyState } from './controls.js';
import { Details } from './details.js';
import { fill, h } from './dom.js';
import { count, moment, plural } from './format.js';
import { NOTHING, VIEWS, go, linkTo, readPlace } from './place.js';
import { SceneMaker, isDark } from './scene.js';
import { Store } from './store.js';
import { createCardsView } from './views/cards.js';
import { createTimeView } from './views/time.js';
import { createTotalsView } from './views/totals.js';
import { createWaitingView } from './views/waiting.js';
import { createWhatIfView } from './views/what_if.js';

/**
 * @typedef {{element: HTMLElement, update: (change: import('./store.js').Change | null) => void}} View
 * @typedef {import('./store.js').Change} Change
 */

const TITLES = /** @type {Record<string, string>} */ ({ cards: 'Cards', waiting: 'Waiting', 'what-if': 'What if', time: 'Time', totals: 'Totals' });
/** Milliseconds between two announcements of what changed, so that a screen reader can finish a sentence. */
const ANNOUNCED = 5000;

/** @param {string} id @returns {HTMLElement} */
const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

export class App {
  constructor() {
    this.store = new Store();
    this.scenes = new SceneMaker();
    this.details = new Details(byId('details'));
    /** set by the view that has a map @type {(step: number) => void} */
    this.zoom = () => {};
    this.views = {
      cards: createCardsView(this), waiting: createWaitingView(this), 'what-if': createWhatIfView(this), time: createTimeView(this), totals: createTotalsView(this),
    };
    this.frame = 0;
    /** @type {Change | null} */
    this.pending = null;
    /** @type {import('./scene.js').Prepared | null} */
    this.cached = null;
    /** @type {number | null} */
    this.shownTime = null;
    this.timeProblem = '';
    this.placed = 0;
    this.announcedAt = 0;
    this.announceTimer = 0;
  }

  start() {
    this.store.subscribe((change) => this.#onChange(change));
    for (const name of ['popstate', 'hashchange', 'placechange']) addEventListener(name, () => this.#onPlace());
    addEventListener('keydown', (event) => this.#onKey(event));
    addEventListener('online', () => this.store.connection.phase === 'lost' && this.store.connect());
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', (system) => {
      if (!localStorage.getItem('tessera.theme')) this.#setTheme(system.matches ? 'dark' : 'light');
    });
    byId('skip').addEventListener('click', () => byId('main').focus());
    byId('theme').addEventListener('click', () => this.#switchTheme());
    byId('help').addEventListener('click', () => this.#help());
    setInterval(() => this.store.connection.phase === 'lost' && this.#showBanners(), 1000);
    this.#showTheme();
    takeToken();
    this.#onPlace();
    this.store.connect();
  }

  // -- changes

  /** @param {Change} change */
  #onChange(change) {
    if (change.changes && this.pending?.changes) for (const key of this.pending.changes.cards) change.changes.cards.add(key);
    this.pending = change.changes || !this.pending?.changes ? change : this.pending;
    this.placed += change.changes?.placed.length ?? 0;
    this.cached = null;
    if (change.changes && (change.changes.cards.size || change.changes.waiting)) this.#announceChanges();
    if (change.kind === 'connection') this.#showConnection();
    if (!this.frame) {
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        const latest = this.pending;
        this.pending = null;
        this.#show(latest);
      });
    }
  }

  #onPlace() {
    // An address with a token that is pasted into this tab changes the fragment alone: the page is not loaded again.
    if (takeToken()) this.#connectAnew();
    this.cached = null;
    const { time } = readPlace();
    if (time !== this.shownTime) this.#travel(time);
    this.#show(null);
  }

  /** @param {number | null} time */
  async #travel(time) {
    this.shownTime = time;
    this.timeProblem = '';
    try {
      await this.store.showTime(time);
    } catch (error) {
      if (this.shownTime !== time || (error instanceof DOMException && error.name === 'AbortError')) return;
      this.timeProblem = error instanceof Error ? error.message : String(error);
      this.#showBanners();
    }
  }

  /** Show the place and the data again. */
  update() {
    this.cached = null;
    this.#show(null);
  }

  /** What the map shows; made once per change. */
  prepared() {
    const cluster = this.store.shown;
    if (!cluster) throw new Error('there is no cluster to show yet');
    this.cached ??= this.scenes.prepare(cluster, readPlace());
    return this.cached;
  }

  /** @param {Change | null} change */
  #show(change) {
    const place = readPlace();
    this.#showTabs(place.view);
    this.#showBanners();
    const main = byId('main');
    const { phase, error } = this.store.connection;
    const cluster = this.store.shown;
    document.title = `${TITLES[place.view]} · ${cluster?.source.name || 'Tessera'}`;
    fill(byId('source'), cluster?.source.name ?? '');
    byId('source').title = cluster ? `${cluster.source.kind} ${cluster.source.name}` : '';
    if (phase === 'refused' && error) {
      if (!main.querySelector('.refused')) fill(main, refused(error, (token) => this.#useToken(token)));
      this.details.show(null, place, () => null);
      return;
    }
    if (!cluster) {
      fill(main, phase === 'lost' ? emptyState('The server does not respond', error?.message ?? '', 'The page tries again by itself.') : h('p', { class: 'loading', role: 'status' }, 'Loading the cluster …'));
      return;
    }
    const view = /** @type {View} */ (this.views[/** @type {keyof App['views']} */ (place.view)]);
    if (main.firstChild !== view.element) fill(main, view.element);
    this.details.show(cluster, place, this.prepared().scene.style.lookOf);
    view.update(change);
  }

  // -- what stands above the view

  /** @param {string} current */
  #showTabs(current) {
    const tabs = byId('tabs');
    const waiting = this.store.shown?.waitingPods ?? 0;
    if (!tabs.hasChildNodes()) {
      fill(tabs, ...VIEWS.map((view) => h('a', { 'data-view': view, href: '#' }, h('span', null, TITLES[view]), view === 'waiting' ? h('span', { class: 'badge number', hidden: true }) : null)));
    }
    for (const tab of /** @type {NodeListOf<HTMLAnchorElement>} */ (tabs.querySelectorAll('a'))) {
      const view = tab.dataset.view ?? '';
      const place = readPlace();
      tab.href = linkTo({ ...place, ...NOTHING, view, sort: '', filter: view === place.view ? place.filter : '' });
      if (view === current) tab.setAttribute('aria-current', 'page');
      else tab.removeAttribute('aria-current');
    }
    const badge = /** @type {HTMLElement | null} */ (tabs.querySelector('.badge'));
    if (badge) {
      badge.hidden = waiting === 0;
      fill(badge, count(waiting), h('span', { class: 'hidden' }, ' pods'));
    }
  }

  #showConnection() {
    const { phase } = this.store.connection;
    const names = { loading: 'Loading', live: 'Live', still: 'Does not change', lost: 'Disconnected', refused: 'No access' };
    const element = byId('phase');
    element.dataset.phase = this.store.past ? 'past' : phase;
    fill(element, this.store.past ? 'Earlier' : names[phase]);
  }

  #showBanners() {
    this.#showConnection();
    const { phase, error, retryAt, since } = this.store.connection;
    const { past, live } = this.store;
    const banners = [];
    if (phase === 'lost' && live) {
      const wait = Math.max(0, Math.ceil((retryAt - Date.now()) / 1000));
      banners.push(h('div', { class: 'banner bad', role: 'alert' },
        h('p', null, h('strong', null, 'Connection lost. '), `${error?.message ?? ''} You see the cluster as it was at ${moment(since / 1000)}.`),
        h('span', { class: 'muted number', 'aria-hidden': 'true' }, wait ? `Next attempt in ${wait} s` : 'Trying …'),
        h('button', { type: 'button', onclick: () => this.store.connect() }, 'Try now')));
    }
    if (this.timeProblem) banners.push(h('div', { class: 'banner warn', role: 'alert' }, h('p', null, this.timeProblem), h('button', { type: 'button', onclick: () => go({ time: null }) }, 'Back to now')));
    else if (past && readPlace().view !== 'time') {
      banners.push(h('div', { class: 'banner past', role: 'status' }, h('p', null, 'You see the cluster as it was at ', h('strong', { class: 'number' }, moment(past.time)), '.'),
        h('button', { type: 'button', onclick: () => go({ time: null }) }, 'Back to now')));
    }
    if (live?.source.problem && live.nodes.size) banners.push(h('div', { class: 'banner warn', role: 'status' }, h('p', null, live.source.problem)));
    const element = byId('banners');
    // An alert that is made anew is read again: only its countdown changes.
    const text = banners.map((banner) => banner.querySelector('p')?.textContent).join('\n');
    if (element.dataset.text === text) {
      const countdown = element.querySelector('.bad .number');
      if (countdown) countdown.textContent = banners[0].querySelector('.number')?.textContent ?? '';
      return;
    }
    element.dataset.text = text;
    fill(element, ...banners);
  }

  /** @param {string} token */
  #useToken(token) {
    saveToken(token);
    this.#connectAnew();
  }

  #connectAnew() {
    fill(byId('main'));
    this.store.connect();
  }

  // -- theme, keys, announcements

  #showTheme() {
    const dark = isDark();
    const button = byId('theme');
    fill(button, dark ? '☀' : '☾');
    button.setAttribute('aria-label', dark ? 'Switch to the light theme' : 'Switch to the dark theme');
    button.title = button.getAttribute('aria-label') ?? '';
    if (this.store.shown) this.update();
  }

  #switchTheme() {
    const next = isDark() ? 'light' : 'dark';
    localStorage.setItem('tessera.theme', next);
    this.#setTheme(next);
  }

  /** @param {string} theme */
  #setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    this.#showTheme();
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    const isTyping = target.matches('textarea, select, input:not([type=radio], [type=range], [type=checkbox])');
    if (event.key === 'Escape') {
      if (document.querySelector('dialog[open]')) return;
      if (isTyping) target.blur();
      else if (!byId('details').hidden) this.details.close();
      return;
    }
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    const number = Number(event.key);
    if (number >= 1 && number <= VIEWS.length) /** @type {HTMLElement} */ (document.querySelector(`#tabs a[data-view="${VIEWS[number - 1]}"]`)).click();
    else if (event.key === '/') {
      const search = /** @type {HTMLInputElement | null} */ (document.querySelector('#main .search'));
      search?.focus();
      search?.select();
    } else if (event.key === '+' || event.key === '=') this.zoom(1);
    else if (event.key === '-') this.zoom(-1);
    else if (event.key === '0') go({ zoom: '' }, { replace: true });
    else if (event.key === '[') this.views.time.step(-1);
    else if (event.key === ']') this.views.time.step(1);
    else if (event.key === '?') this.#help();
    else return;
    event.preventDefault();
  }

  #help() {
    const keys = [
      ['1 … 5', 'the views'], ['/', 'the filter; Enter goes to the first match'], ['Arrows, Home, End', 'move on the map'], ['Enter', 'the card\'s details; with Shift its node'],
      ['n, Shift n', 'next and previous match'], ['+, −, 0', 'zoom in, out, fit'], ['[, ]', 'previous and next decision'], ['Esc', 'close the details'],
    ];
    const words = [
      ['chat', 'anything with this text'], ['node:h100-1 model:l4', 'a node, a model'], ['ns:team-a pod:train owner:chat', 'who holds a slice'], ['mode:mig', 'how the card is shared'],
      ['is:free', 'also full, partial, shared, idle, unhealthy, cordoned, held'], ['-is:free', 'not'],
    ];
    const dialog = h('dialog', { class: 'help', 'aria-labelledby': 'help-title' },
      h('h2', { id: 'help-title' }, 'Keys'), h('dl', null, ...keys.flatMap(([key, text]) => [h('dt', null, h('kbd', null, key)), h('dd', null, text)])),
      h('h2', null, 'Filter'), h('dl', null, ...words.flatMap(([key, text]) => [h('dt', null, h('code', null, key)), h('dd', null, text)])),
      h('p', { class: 'muted' }, 'The address has everything that you see: send it to a colleague.'),
      h('button', { type: 'button', class: 'primary', onclick: () => dialog.close() }, 'Close'));
    dialog.addEventListener('close', () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }

  /** Say something to screen readers. @param {string} text */
  announce(text) {
    fill(byId('live'), text);
  }

  #announceChanges() {
    if (this.announceTimer) return;
    this.announceTimer = setTimeout(() => {
      this.announceTimer = 0;
      this.announcedAt = Date.now();
      const waiting = this.store.shown?.waitingPods ?? 0;
      const parts = [this.placed ? `${plural(this.placed, 'pod')} placed` : '', `${plural(waiting, 'pod waits', 'pods wait')}`];
      this.placed = 0;
      this.announce(parts.filter(Boolean).join(', '));
    }, Math.max(300, this.announcedAt + ANNOUNCED - Date.now()));
  }
}

/** @param {import('./api.js').ApiError} error @param {(token: string) => void} onToken */
function refused(error, onToken) {
  const input = h('input', { type: 'password', id: 'token', autocomplete: 'off', required: true });
  const form = h('form', { class: 'token-form', onsubmit: (/** @type {Event} */ event) => {
    event.preventDefault();
    if (input.value.trim()) onToken(input.value.trim());
  } }, h('label', { for: 'token' }, 'Bearer token'), input, h('button', { type: 'submit', class: 'primary' }, 'Continue'));
  const isWrong = error.status === 401 && hasToken();
  const content = error.status === 401
    ? [isWrong ? h('p', { class: 'note bad', role: 'alert' }, `This token does not let you in: ${error.message}.`) : null, 'The server needs to know who you are. The token stays in this tab.', form, h('p', { class: 'muted' }, h('code', null, 'kubectl create token NAME'), ' makes one for a service account.')]
    : [error.message, 'You are known, but have no right to see this cluster\'s cards. An administrator can grant it.', form];
  const element = emptyState(error.status === 401 ? 'Sign in' : 'No access', ...content);
  element.classList.add('refused');
  return element;
}
