// @ts-check
/** Totals: what the cluster has, what is granted and used of it, what is free but of no use, and how long pods wait. */

import { bar, emptyState } from '../controls.js';
import { fill, h, reconcile } from '../dom.js';
import { cardCount, count, duration, percent, size, sizeOf } from '../format.js';
import { NOTHING, linkTo, readPlace } from '../place.js';

/** @param {import('../app.js').App} app */
export function createTotalsView(app) {
  const figures = h('div', { class: 'figures' });
  const namespaces = h('tbody');
  const models = h('tbody');
  const tables = h('div', { class: 'totals-tables' },
    totalsTable('By namespace', ['Namespace', 'Cards', 'Memory granted', 'Cores', 'Used of it'], namespaces),
    totalsTable('By model', ['Model', 'Cards', 'Memory granted', 'Cores', 'Free'], models));
  const element = h('section', { class: 'view scroll totals-view', 'aria-label': 'Totals' }, figures, tables);

  return {
    element,
    update() {
      const cluster = app.store.shown;
      if (!cluster) return;
      const { totals } = cluster;
      if (!totals || !totals.cards) {
        fill(element, emptyState('No cards yet', 'There is nothing to count.'));
        return;
      }
      if (element.firstChild !== figures) fill(element, figures, tables);
      fill(figures, ...figureList(totals, cluster));
      const whole = totals.total;
      reconcile(namespaces, totals.byNamespace, (one) => one.namespace, (one) => row(
        h('a', { href: linkTo({ ...readPlace(), ...NOTHING, view: 'cards', filter: `ns:${one.namespace}` }) }, one.namespace), one, whole, one.used ? percent(one.used.memory, one.granted.memory) : '–'));
      reconcile(models, totals.byModel, (one) => one.model, (one) => row(
        h('a', { href: linkTo({ ...readPlace(), ...NOTHING, view: 'cards', filter: `model:"${one.model}"` }) }, one.model), one, one.total, size(one.total.memory - one.granted.memory)));
    },
  };
}

/** @param {string} title @param {string[]} columns @param {HTMLElement} body */
function totalsTable(title, columns, body) {
  return h('div', { class: 'totals-table', role: 'region', 'aria-label': title, tabindex: '0' }, h('table', null, h('caption', null, title),
    h('thead', null, h('tr', null, ...columns.map((column, at) => h('th', { scope: 'col', class: at ? 'number' : '' }, column)))), body));
}

/** @param {HTMLElement} name @param {any} one @param {any} whole @param {string} last */
function row(name, one, whole, last) {
  const parts = [{ share: one.granted.memory / whole.memory, kind: 'granted' }];
  if (one.used) parts.push({ share: one.used.memory / whole.memory, kind: 'used' });
  return h('tr', null, h('th', { scope: 'row' }, name),
    h('td', { class: 'number' }, one.cards === undefined ? cardCount(one.granted.cards) : `${cardCount(one.granted.cards)} of ${count(one.cards)}`),
    h('td', { class: 'number with-bar' }, h('span', null, size(one.granted.memory)), h('span', { class: 'muted' }, percent(one.granted.memory, whole.memory)), bar(parts)),
    h('td', { class: 'number' }, percent(one.granted.cores, whole.cores)),
    h('td', { class: 'number' }, last));
}

/** @param {any} totals @param {import('../cluster.js').Cluster} cluster */
function figureList(totals, cluster) {
  const { granted, total, used, fragmented, idle, waits } = totals;
  /** @type {(title: string, value: string, note: string, parts?: {share: number, kind: string}[]) => HTMLElement} */
  const figure = (title, value, note, parts) => h('div', { class: 'figure' }, h('h2', null, title), h('p', { class: 'value number' }, value), parts ? bar(parts) : null, h('p', { class: 'muted' }, note));
  const share = (/** @type {number} */ part, /** @type {number} */ whole) => (whole ? part / whole : 0);
  const list = [
    figure('Memory granted', percent(granted.memory, total.memory), `${sizeOf(granted.memory, total.memory)} on ${count(totals.cards)} cards`,
      [{ share: share(granted.memory, total.memory), kind: 'granted' }]),
    figure('Cores granted', percent(granted.cores, total.cores), `${count(granted.cores / 100)} of ${count(total.cores / 100)} cards' worth`,
      [{ share: share(granted.cores, total.cores), kind: 'granted' }]),
    used
      ? figure('Memory used', percent(used.memory, granted.memory), `${sizeOf(used.memory, granted.memory)} that are granted`, [{ share: share(used.memory, granted.memory), kind: 'used' }])
      : figure('Memory used', '–', cluster.source.kind === 'scheduler' ? 'Not known to the scheduler: run tessera dashboard to see it' : 'Unknown: the monitor gives no figures here'),
    figure('Fragmented', percent(fragmented.memory, total.memory), `${size(fragmented.memory)} free, but of no use for what pods ask`,
      [{ share: share(fragmented.memory, total.memory), kind: 'warn' }]),
  ];
  if (idle) {
    list.push(figure('Idle grants', `${cardCount(idle.cards ?? 0)} cards`, `${size(idle.memory ?? 0)} held by pods that use nothing of it`, [{ share: share(idle.memory ?? 0, total.memory), kind: 'warn' }]));
  }
  list.push(figure('Waiting', count(cluster.waitingPods), waits && waits.longest !== null && waits.count
    ? `half under ${duration(Math.max(1, waits.p50))}, 95 % under ${duration(Math.max(1, waits.p95))}, longest ${waits.longest < 1 ? 'below 1 s' : duration(waits.longest)}`
    : 'No waits are recorded yet'));
  return list;
}
