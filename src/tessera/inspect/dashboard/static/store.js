// @ts-check
/**
 * What the page knows: the cluster now, the cluster at an earlier time, and how the connection is doing.
 *
 *     loading --state--> live --stream ends--> lost --back-off--> loading
 *        |                 '--source that does not change--> still
 *        '--401, 403--> refused --token--> loading
 *
 * Views subscribe; they read, and only this module writes.
 */

import { ApiError, get, readEvents } from './api.js';
import { Cluster } from './cluster.js';

/**
 * @typedef {'loading' | 'live' | 'still' | 'lost' | 'refused'} Phase
 * @typedef {{phase: Phase, error: ApiError | null, retryAt: number, since: number}} Connection
 * @typedef {{kind: 'state' | 'nodes' | 'waiting' | 'totals' | 'connection', changes?: import('./cluster.js').Changes}} Change
 */

/** Milliseconds before the first and the last attempts to return; each wait is twice the one before it. */
const FIRST_WAIT = 500;
const LONGEST_WAIT = 30_000;
/** The server sends something at least every 15 s: a stream that is silent for longer than this is dead. */
const SILENCE = 40_000;

export class Store {
  constructor() {
    /** @type {Cluster | null} */
    this.live = null;
    /** @type {Cluster | null} */
    this.past = null;
    /** @type {Connection} */
    this.connection = { phase: 'loading', error: null, retryAt: 0, since: Date.now() };
    /** @type {Set<(change: Change) => void>} */
    this.listeners = new Set();
    this.failures = 0;
    /** @type {AbortController | null} */
    this.attempt = null;
    /** @type {AbortController | null} */
    this.travel = null;
    this.timer = 0;
  }

  /** What views show. */
  get shown() {
    return this.past ?? this.live;
  }

  /** @param {(change: Change) => void} listener */
  subscribe(listener) {
    this.listeners.add(listener);
  }

  /** @param {Change} change */
  #tell(change) {
    for (const listener of this.listeners) listener(change);
  }

  /** @param {Phase} phase @param {ApiError | null} [error] @param {number} [retryAt] */
  #enter(phase, error = null, retryAt = 0) {
    const since = phase === this.connection.phase ? this.connection.since : Date.now();
    this.connection = { phase, error, retryAt, since };
    this.#tell({ kind: 'connection' });
  }

  /** Connect now, also if the next attempt is due later. */
  async connect() {
    clearTimeout(this.timer);
    this.attempt?.abort();
    const attempt = new AbortController();
    this.attempt = attempt;
    try {
      await this.#follow(attempt.signal);
      if (!attempt.signal.aborted) this.#lose(new ApiError(0, 'The server ended the connection.'));
    } catch (error) {
      if (attempt.signal.aborted) return;
      if (error instanceof ApiError && (error.status === 401 || error.status === 403)) this.#enter('refused', error);
      else this.#lose(error instanceof ApiError ? error : new ApiError(0, 'The connection was lost.'));
    }
  }

  /** @param {ApiError} error */
  #lose(error) {
    const wait = Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** this.failures) * (0.75 + Math.random() / 2);
    this.failures += 1;
    this.#enter('lost', error, Date.now() + wait);
    this.timer = setTimeout(() => this.connect(), wait);
  }

  /** @param {AbortSignal} signal */
  async #follow(signal) {
    // A stream that was lost is continued after its last version; the server asks for a new state if it cannot.
    let live = this.live ?? (await this.#load(signal));
    for (;;) {
      if (!live.source.live) return await this.#rest(signal);
      const stream = new AbortController();
      const end = () => stream.abort();
      signal.addEventListener('abort', end);
      let mustLoad = false;
      let watchdog = setTimeout(end, SILENCE);
      try {
        await readEvents(live.version, {
          signal: stream.signal,
          onOpen: () => {
            this.failures = 0;
            this.#enter('live');
          },
          onBytes: () => {
            clearTimeout(watchdog);
            watchdog = setTimeout(end, SILENCE);
          },
          onEvent: (event) => {
            if (event.kind === 'resync') {
              mustLoad = true;
              end();
            } else this.#take(live, event);
          },
        });
        return;
      } catch (error) {
        if (!mustLoad || signal.aborted) throw error;
      } finally {
        clearTimeout(watchdog);
        signal.removeEventListener('abort', end);
      }
      live = await this.#load(signal);
    }
  }

  /** A source that does not change: nothing to follow. @param {AbortSignal} signal */
  async #rest(signal) {
    this.failures = 0;
    this.#enter('still');
    await new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
  }

  /** @param {AbortSignal} signal */
  async #load(signal) {
    const live = new Cluster(await get('state', {}, signal));
    this.live = live;
    this.#tell({ kind: 'state' });
    return live;
  }

  /** @param {Cluster} live @param {import('./api.js').ServerEvent} event */
  #take(live, { kind, version, document }) {
    if (Number.isFinite(version)) live.version = version;
    if (kind !== 'nodes' && kind !== 'waiting' && kind !== 'totals') return;
    const changes = live.apply(kind, document);
    if (!this.past) this.#tell({ kind, changes });
  }

  /**
   * Show the cluster at an earlier time, or (null) now. A later call overtakes an earlier one.
   * @param {number | null} time
   */
  async showTime(time) {
    this.travel?.abort();
    if (time === null) {
      this.travel = null;
      if (this.past) {
        this.past = null;
        this.#tell({ kind: 'state' });
      }
      return;
    }
    const travel = new AbortController();
    this.travel = travel;
    const document = await get('state', { time }, travel.signal);
    if (travel.signal.aborted) return;
    // A moment does not pass, also if the cluster does.
    this.past = new Cluster({ ...document, source: { ...document.source, live: false } });
    this.#tell({ kind: 'state' });
  }
}
