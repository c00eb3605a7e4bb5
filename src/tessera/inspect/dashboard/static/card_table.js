// @ts-check
/** The cards as a table, page by page: for screen readers, for copying, and for those who prefer numbers. */

import { h, fill } from './dom.js';
import { compareNames, count, mib, plural } from './format.js';

/** @typedef {import('./cluster.js').Card} Card */

const PAGE = 100;

/** @param {Card} card @param {(slice: import('./cluster.js').Slice) => number} amount */
const sum = (card, amount) => card.slices.reduce((total, slice) => total + amount(slice), 0);

/** @typedef {{key: string, title: string, right?: boolean, order: (a: Card, b: Card) => number}} Column */

/** @type {Column[]} */
const COLUMNS = [
  { key: 'node', title: 'Node', order: (a, b) => compareNames(a.node, b.node) || a.index - b.index },
  { key: 'card', title: 'Card', right: true, order: (a, b) => a.index - b.index },
  { key: 'model', title: 'Model', order: (a, b) => compareNames(a.model, b.model) },
  { key: 'mode', title: 'Mode', order: (a, b) => compareNames(a.mode, b.mode) },
  { key: 'state', title: 'State', order: (a, b) => compareNames(b.state, a.state) },
  { key: 'granted', title: 'Granted', right: true, order: (a, b) => sum(b, (s) => s.memory) - sum(a, (s) => s.memory) },
  { key: 'used', title: 'Used', right: true, order: (a, b) => (b.used ?? -1) - (a.used ?? -1) },
  { key: 'memory', title: 'Memory', right: true, order: (a, b) => b.memory - a.memory },
  { key: 'cores', title: 'Cores', right: true, order: (a, b) => sum(b, (s) => s.cores) - sum(a, (s) => s.cores) },
  { key: 'pods', title: 'Pods', order: (a, b) => b.slices.length - a.slices.length },
];

export class CardTable {
  /** @param {{onSort: (key: string) => void, cardLink: (card: Card) => string, podLink: (namespace: string, name: string) => string}} listener */
  constructor(listener) {
    this.listener = listener;
    this.page = 0;
    this.head = h('tr');
    this.body = h('tbody');
    this.pages = h('p', { class: 'pages' });
    this.element = h('div', { class: 'table-frame', tabindex: '0', role: 'region', 'aria-label': 'Cards as a table' },
      h('table', { class: 'cards-table' }, h('caption', { class: 'hidden' }, 'Cards'), h('thead', null, this.head), this.body), this.pages);
    /** @type {(() => void) | null} */
    this.again = null;
  }

  /** @param {Card[]} cards @param {import('./cluster.js').Cluster} cluster @param {string} sort */
  show(cards, cluster, sort) {
    this.again = () => this.show(cards, cluster, sort);
    const chosen = COLUMNS.find((column) => column.key === sort) ?? COLUMNS[0];
    const sorted = [...cards].sort((a, b) => chosen.order(a, b) || COLUMNS[0].order(a, b));
    this.page = Math.max(0, Math.min(this.page, Math.ceil(sorted.length / PAGE) - 1));
    fill(this.head, ...COLUMNS.map((column) =>
      h('th', { scope: 'col', class: column.right ? 'number' : '', 'aria-sort': column === chosen ? (column.right ? 'descending' : 'ascending') : null },
        h('button', { class: 'sort', type: 'button', onclick: () => this.listener.onSort(column.key) }, column.title))));
    fill(this.body, ...sorted.slice(this.page * PAGE, (this.page + 1) * PAGE).map((card) => this.#row(card, cluster)));
    this.#showPages(sorted.length);
  }

  /** @param {Card} card @param {import('./cluster.js').Cluster} cluster */
  #row(card, cluster) {
    const pods = [];
    for (const slice of card.slices.slice(0, 8)) {
      const pod = cluster.pods.get(slice.pod);
      if (pods.length) pods.push(', ');
      pods.push(pod ? h('a', { href: this.listener.podLink(pod.namespace, pod.name) }, `${pod.namespace}/${pod.name}`) : slice.pod);
    }
    if (card.slices.length > 8) pods.push(` and ${card.slices.length - 8} more`);
    return h('tr', null,
      h('th', { scope: 'row' }, card.node),
      h('td', { class: 'number' }, h('a', { href: this.listener.cardLink(card), 'aria-label': `card ${card.index} of ${card.node}` }, card.index)),
      h('td', null, card.model),
      h('td', null, card.mode),
      h('td', { class: card.state.startsWith('unhealthy') ? 'bad' : card.state ? '' : 'muted' }, card.state || 'healthy'),
      h('td', { class: card.slices.length ? 'number' : 'number muted' }, mib(sum(card, (slice) => slice.memory))),
      h('td', { class: card.used ? 'number' : 'number muted' }, card.used === null ? '–' : mib(card.used)),
      h('td', { class: 'number' }, mib(card.memory)),
      h('td', { class: card.slices.length ? 'number' : 'number muted' }, `${sum(card, (slice) => slice.cores)}/${card.cores}`),
      h('td', { class: pods.length ? '' : 'muted' }, pods.length ? pods : '–'));
  }

  /** @param {number} total */
  #showPages(total) {
    const last = Math.max(0, Math.ceil(total / PAGE) - 1);
    const turn = (/** @type {number} */ page) => () => {
      this.page = page;
      this.again?.();
      this.element.scrollTop = 0;
    };
    fill(this.pages,
      h('button', { type: 'button', disabled: this.page === 0, onclick: turn(this.page - 1) }, 'Previous'),
      h('span', null, total ? `${count(this.page * PAGE + 1)} to ${count(Math.min(total, (this.page + 1) * PAGE))} of ${plural(total, 'card')}` : 'No cards'),
      h('button', { type: 'button', disabled: this.page >= last, onclick: turn(this.page + 1) }, 'Next'));
  }
}
