// @ts-check
/**
 * What the page knows: the cluster now, the cluster at an earlier time, and how the connection is doing.
 *
 *     loading --state--> live, or still if the source does not change
 *        |                 '--no answer--> lost --back-off--> loading
 *        '--401, 403--> refused --token--> loading
 *
 * Views subscribe; they read, and only this module writes.
 */

import { ApiError, get } from './api.js';
import { Cluster } from './cluster.js';

/**
 * @typedef {'loading' | 'live' | 'still' | 'lost' | 'refused'} Phase
 * @typedef {{phase: Phase, error: ApiError | null, retryAt: number, since: number}} Connection
 * @typedef {{kind: 'state' | 'news' | 'connection', changes?: import('./cluster.js').Changes}} Change
 */

/** Milliseconds before the first and the last attempts to return; each wait is twice the one before it. */
const FIRST_WAIT = 500;
const LONGEST_WAIT = 30_000;
/** The server responds after 15 s at the latest, also if nothing is new, but for the first state of a large cluster. */
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
    if (phase === this.connection.phase && !error && !this.connection.error) return;
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
      for (;;) await this.#ask(attempt.signal);
    } catch (error) {
      if (attempt.signal.aborted) return;
      if (error instanceof ApiError && (error.status === 401 || error.status === 403)) this.#enter('refused', error);
      else this.#lose(error instanceof ApiError ? error : new ApiError(0, 'The connection was lost.'));
    }
  }

  /** The whole state, or what is newer than what is known. @param {AbortSignal} signal */
  async #ask(signal) {
    const { live, connection } = this;
    // Who comes back wants to know that at once.
    const wait = connection.phase === 'live' || connection.phase === 'still' ? null : 0;
    const patience = live ? [AbortSignal.timeout(SILENCE)] : [];
    const document = await get('state', live ? { since: live.version, wait } : {}, AbortSignal.any([signal, ...patience]));
    const isNews = document.version !== live?.version;
    const changes = live && document.since !== null ? live.apply(document) : undefined;
    if (!changes) this.live = new Cluster(document);
    this.failures = 0;
    this.#enter(document.source.live ? 'live' : 'still');
    if (!changes) this.#tell({ kind: 'state' });
    else if (isNews && !this.past) this.#tell({ kind: 'news', changes });
  }

  /** @param {ApiError} error */
  #lose(error) {
    const wait = Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** this.failures) * (0.75 + Math.random() / 2);
    this.failures += 1;
    this.#enter('lost', error, Date.now() + wait);
    this.timer = setTimeout(() => this.connect(), wait);
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
