// @ts-check
/** Time: back through the journal, with the cluster and the decisions as they were. */

import { get } from '../api.js';
import { emptyState } from '../controls.js';
import { nodeLink, podLink } from '../details.js';
import { fill, h, svg } from '../dom.js';
import { clock, count, moment, withoutUuids } from '../format.js';
import { go, readPlace } from '../place.js';
import { createMap } from './cards.js';

/** @typedef {{sequence: number, time: number, kind: string, pod: string, node: string, text: string}} JournalRecord */

const BINS = 240;
const LISTED = 150;
const MOST = 5000;
/** Milliseconds between two requests for decisions that were made while the page is open. */
const REFRESH = 2000;
/** Milliseconds without a move of the slider before the state is fetched. */
const SETTLED = 120;

const KINDS = new Map([
  ['placed', 'placed'], ['bind', 'placed'], ['refused', 'refused'], ['denied', 'refused'], ['unfinished', 'refused'],
]);

/** @param {JournalRecord} record @returns {'placed' | 'refused' | 'other'} */
const kindOf = (record) => /** @type {'placed' | 'refused' | 'other'} */ (KINDS.get(record.kind) ?? 'other');

/** @param {import('../app.js').App} app */
export function createTimeView(app) {
  /** @type {JournalRecord[]} */
  let records = [];
  let range = { from: 0, to: 0 };
  let loadedFor = '';
  let problem = '';
  let settle = 0;
  const map = createMap(app);
  const ticks = svg('svg', { class: 'ticks', viewBox: `0 0 ${BINS} 40`, preserveAspectRatio: 'none', 'aria-hidden': 'true' });
  const slider = h('input', { type: 'range', id: 'slider', class: 'slider', 'aria-label': 'Time', step: '0.001',
    oninput: () => {
      label();
      clearTimeout(settle);
      settle = setTimeout(() => travel(Number(slider.value)), SETTLED);
    } });
  const when = h('output', { for: 'slider', class: 'when number' });
  const ends = h('div', { class: 'ends number' }, h('span'), h('span'));
  const back = h('button', { type: 'button', title: 'The decision before ([)', onclick: () => step(-1) }, '‹ Previous');
  const on = h('button', { type: 'button', title: 'The next decision (])', onclick: () => step(1) }, 'Next ›');
  const live = h('button', { type: 'button', class: 'primary', onclick: () => go({ time: null }) }, 'Back to now');
  const list = h('ol', { class: 'records', 'aria-label': 'Decisions', tabindex: '0' });
  const note = h('p', { class: 'muted' });
  const tally = h('ul', { class: 'tally number', 'aria-label': 'Up to this moment' });
  const stage = h('div', { class: 'stage' }, map.element);
  const content = h('div', { class: 'time-content' },
    h('div', { class: 'time-bar' }, h('div', { class: 'time-head' }, when, h('div', { class: 'buttons' }, back, on, live)), h('div', { class: 'track' }, ticks, slider, ends)),
    h('div', { class: 'time-body' }, h('div', { class: 'decisions' }, h('div', { class: 'decisions-head' }, h('h2', null, 'Decisions'), tally), note, list), stage));
  const element = h('section', { class: 'view time-view', 'aria-label': 'Time' });

  /** @param {number} time */
  function travel(time) {
    go({ time: Math.min(time, range.to) }, { replace: true });
  }

  /** @param {1 | -1} direction */
  function step(direction) {
    const now = readPlace().time ?? range.to;
    const next = direction > 0 ? records.find((record) => record.time > now + 0.0005) : records.findLast((record) => record.time < now - 0.0005);
    if (next) travel(next.time);
  }

  function label() {
    const time = Number(slider.value);
    // The slider rounds to its step.
    fill(when, readPlace().time === null && time > range.to - 0.01 ? 'Now' : moment(time));
    slider.setAttribute('aria-valuetext', moment(time));
  }

  function drawTicks() {
    const bins = Array.from({ length: BINS }, () => ({ placed: 0, refused: 0, other: 0 }));
    const span = Math.max(range.to - range.from, 0.001);
    for (const record of records) {
      const bin = bins[Math.min(BINS - 1, Math.max(0, Math.floor(((record.time - range.from) / span) * BINS)))];
      bin[kindOf(record)] += 1;
    }
    const most = Math.max(1, ...bins.map((bin) => bin.placed + bin.refused + bin.other));
    const bars = [];
    for (const [at, bin] of bins.entries()) {
      let y = 40;
      for (const kind of /** @type {const} */ (['placed', 'refused', 'other'])) {
        if (!bin[kind]) continue;
        const height = Math.max(3, (bin[kind] / most) * 36);
        y -= height;
        bars.push(svg('rect', { x: at + 0.15, y, width: 0.7, height, class: `tick-${kind}` }));
      }
    }
    fill(ticks, ...bars);
  }

  function showRecords() {
    const time = readPlace().time ?? Infinity;
    const before = records.filter((record) => record.time <= time + 0.0005);
    const shown = before.slice(-LISTED).reverse();
    const counts = { placed: 0, refused: 0, other: 0 };
    for (const record of before) counts[kindOf(record)] += 1;
    fill(tally, ...Object.entries(counts).filter(([, number]) => number).map(([kind, number]) => h('li', null, h('span', { class: `dot dot-${kind}`, 'aria-hidden': 'true' }), `${count(number)} ${kind}`)));
    fill(note, shown.length < before.length ? `The last ${count(shown.length)} of ${count(before.length)}` : problem);
    fill(list, ...shown.map((record, at) => h('li', { class: `record kind-${kindOf(record)}${at === 0 ? ' current' : ''}` },
      h('button', { type: 'button', class: 'link number', title: 'Show this moment', onclick: () => travel(record.time) }, clock(record.time)),
      h('span', { class: 'record-kind' }, record.kind),
      h('span', { class: 'record-text' },
        record.pod || record.node ? h('span', { class: 'record-names' },
          record.pod ? h('a', { href: podLink(.../** @type {[string, string]} */ (split(record.pod))) }, record.pod) : null,
          record.pod && record.node ? ' → ' : null,
          record.node ? h('a', { href: nodeLink(record.node) }, record.node) : null) : null,
        record.text ? h('span', { class: record.pod ? 'muted' : '', title: record.text }, withoutUuids(record.text)) : null))));
    if (shown.length === 0) fill(list, h('li', { class: 'muted' }, 'No decisions up to this moment.'));
  }

  async function load() {
    const journal = app.store.live?.source.journal;
    if (!journal) return;
    const wanted = `${journal.from} ${journal.to}`;
    if (wanted === loadedFor) return;
    loadedFor = wanted;
    range = { ...journal };
    try {
      const found = await get('journal', { from: journal.from, to: journal.to, limit: MOST });
      records = found.records.sort((/** @type {JournalRecord} */ a, /** @type {JournalRecord} */ b) => a.time - b.time || a.sequence - b.sequence);
      problem = found.more ? `The journal has more; these are ${count(records.length)} of its records.` : '';
      if (app.store.live?.source.live && records.length) range.to = Math.max(range.to, records[records.length - 1].time);
    } catch (error) {
      records = [];
      problem = error instanceof Error ? error.message : String(error);
    }
    drawTicks();
    app.update();
  }

  let refresh = 0;
  /** What was decided since; only while the reader is at the end of the journal. */
  async function follow() {
    refresh = 0;
    const cluster = app.store.live;
    if (!cluster?.source.live || !element.isConnected || readPlace().time !== null) return;
    const last = records[records.length - 1];
    try {
      const found = await get('journal', { from: last ? last.time : range.from, limit: MOST });
      const fresh = found.records.filter((/** @type {JournalRecord} */ record) => record.sequence > (last?.sequence ?? 0));
      records = [...records, ...fresh].slice(-MOST);
      range.to = Math.max(range.to, cluster.now());
      drawTicks();
      if (fresh.length) app.update();
    } catch {
      // the banner says if the server is gone; the next change asks again
    }
  }

  return {
    element,
    map,
    step,
    /** @param {import('../store.js').Change | null} change */
    update(change) {
      const cluster = app.store.shown;
      const journal = app.store.live?.source.journal;
      if (!cluster) return;
      if (!journal) {
        fill(element, emptyState('No journal', 'This source has no decision journal, so there is no earlier time to go to.',
          h('p', null, 'A running scheduler keeps one; ', h('code', null, 'tessera snapshot --with-journal'), ' packs it into a file.')));
        return;
      }
      if (element.firstChild !== content) fill(element, content);
      load();
      if (change && change.kind !== 'connection' && !refresh) refresh = setTimeout(follow, REFRESH);
      const { time } = readPlace();
      slider.min = String(range.from);
      slider.max = String(range.to);
      if (document.activeElement !== slider || time === null) slider.value = String(time ?? range.to);
      label();
      live.disabled = time === null;
      fill(ends.children[0], moment(range.from));
      fill(ends.children[1], moment(range.to));
      showRecords();
      map.scroller.setAttribute('aria-label', 'Map of the cards at this time');
      map.show(app.prepared().scene);
      if (change?.changes) map.flash(change.changes.cards);
    },
  };
}

/** @param {string} pod  namespace/name */
function split(pod) {
  const slash = pod.indexOf('/');
  return [pod.slice(0, slash), pod.slice(slash + 1)];
}
