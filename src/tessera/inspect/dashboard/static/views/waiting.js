// @ts-check
/** Waiting: every pod that waits for a card, why, and the smallest change that would fit. A gang is one of them, with its members. */

import { emptyState } from '../controls.js';
import { podLink } from '../details.js';
import { fill, h, reconcile } from '../dom.js';
import { count, duration, moment, plural } from '../format.js';
import { go, readPlace } from '../place.js';

/** @typedef {import('../cluster.js').WaitingPod} WaitingPod */

const PAGE = 100;

/** @type {Record<string, (a: WaitingPod, b: WaitingPod) => number>} */
const ORDERS = {
  longest: (a, b) => (a.since ?? Infinity) - (b.since ?? Infinity),
  newest: (a, b) => (b.since ?? 0) - (a.since ?? 0),
  name: (a, b) => `${a.namespace}/${a.name}`.localeCompare(`${b.namespace}/${b.name}`),
};

/** @param {import('../app.js').App} app */
export function createWaitingView(app) {
  let shown = PAGE;
  /** the rows whose members the reader wants to see, also after they have changed @type {Set<string>} */
  const opened = new Set();
  const title = h('h2');
  const search = h('input', {
    type: 'search', class: 'search', placeholder: 'Filter: pod, namespace, reason …', 'aria-label': 'Filter waiting pods', autocomplete: 'off', spellcheck: 'false',
    oninput: () => go({ filter: search.value.trim() }, { replace: true }),
  });
  const order = h('select', { 'aria-label': 'Order', onchange: () => go({ sort: order.value }, { replace: true }) },
    h('option', { value: 'longest' }, 'Longest first'), h('option', { value: 'newest' }, 'Newest first'), h('option', { value: 'name' }, 'By name'));
  const list = h('ul', { class: 'waiting-list', 'aria-label': 'Waiting pods' });
  const foot = h('p', { class: 'pages' });
  const empty = h('div');
  const toolbar = h('div', { class: 'toolbar' }, title, search, order);
  const element = h('section', { class: 'view scroll waiting-view', 'aria-label': 'Waiting' }, toolbar, list, foot, empty);

  /** @param {WaitingPod} pod */
  function item(pod) {
    if (pod.gang) return gangItem(pod, pod.gang);
    const row = (/** @type {string} */ name, /** @type {string} */ text, kind = '') => (text ? [h('dt', null, name), h('dd', { class: kind }, text)] : []);
    return h('li', { class: 'waiting-pod' },
      h('div', { class: 'waiting-head' },
        h('h3', null, h('a', { href: podLink(pod.namespace, pod.name), onclick: (/** @type {Event} */ event) => app.details.openFrom(/** @type {HTMLElement} */ (event.currentTarget)) },
          h('span', { class: 'namespace' }, `${pod.namespace}/`), pod.name)),
        h('span', { class: 'asks' }, pod.asks),
        h('time', { class: 'age number', 'data-since': pod.since, title: pod.since === null ? '' : `since ${moment(pod.since)}` }, age(pod.since))),
      h('dl', { class: 'reasons' }, ...row('Why', pod.why), ...row('Nearest', pod.nearest), ...row('Smallest change', pod.change, 'change')),
      h('p', { class: 'waiting-foot' }, [pod.owner ? `${pod.owner[0]} ${pod.owner[1]}` : '', pod.attempts ? plural(pod.attempts, 'attempt') : ''].filter(Boolean).join(' · ')));
  }

  /** @param {WaitingPod} row @param {import('../cluster.js').WaitingGang} gang */
  function gangItem(row, gang) {
    const least = gang.required === gang.size ? '' : ` of ${count(gang.size)}`;
    const figures = [
      [`${count(gang.required)}${least}`, 'required'], [count(gang.exist), gang.exist === 1 ? 'exists' : 'exist'], [gang.fit === null ? '–' : count(gang.fit), gang.fit === 1 ? 'fits' : 'fit'],
      ...(gang.bound ? [[count(gang.bound), 'bound']] : []), ...(gang.gated ? [[count(gang.gated), 'gated']] : []),
    ];
    const members = h('details', { class: 'members', open: opened.has(row.uid), ontoggle: (/** @type {Event} */ event) => opened[/** @type {HTMLDetailsElement} */ (event.currentTarget).open ? 'add' : 'delete'](row.uid) },
      h('summary', null, plural(gang.members.length, 'member')),
      h('ul', null, ...gang.members.map(([name, state, node]) => h('li', null,
        h('a', { href: podLink(row.namespace, name), onclick: (/** @type {Event} */ event) => app.details.openFrom(/** @type {HTMLElement} */ (event.currentTarget)) }, name),
        h('span', { class: `member-state state-${state}` }, state), node ? h('span', { class: 'muted' }, node) : null))));
    return h('li', { class: 'waiting-pod waiting-gang' },
      h('div', { class: 'waiting-head' },
        h('h3', null, h('span', { class: 'gang-mark' }, 'Gang'), h('span', { class: 'namespace' }, `${row.namespace}/`), row.name),
        h('span', { class: 'asks' }, row.asks),
        h('time', { class: 'age number', 'data-since': row.since, title: row.since === null ? '' : `since ${moment(row.since)}` }, age(row.since))),
      h('ul', { class: 'gang-figures', 'aria-label': 'Members' }, ...figures.map(([number, what]) => h('li', null, h('strong', { class: 'number' }, number), ` ${what}`))),
      h('dl', { class: 'reasons' }, h('dt', null, 'Why'), h('dd', null, row.why),
        ...(gang.until === null ? [] : [h('dt', null, 'Held until'), h('dd', null, moment(gang.until))])),
      members,
      h('p', { class: 'waiting-foot' }, row.owner ? `${row.owner[0]} ${row.owner[1]}` : ''));
  }

  /** @param {number | null} since */
  function age(since) {
    const cluster = app.store.shown;
    return since === null || !cluster ? '–' : duration(cluster.now() - since);
  }

  setInterval(() => {
    if (!element.isConnected) return;
    for (const time of /** @type {NodeListOf<HTMLElement>} */ (list.querySelectorAll('time'))) {
      const text = age(time.dataset.since ? Number(time.dataset.since) : null);
      if (time.textContent !== text) time.textContent = text;
    }
  }, 1000);

  return {
    element,
    update() {
      const cluster = app.store.shown;
      if (!cluster) return;
      const place = readPlace();
      if (document.activeElement !== search) search.value = place.filter;
      order.value = place.sort in ORDERS ? place.sort : 'longest';
      const words = place.filter.toLowerCase().split(/\s+/).filter(Boolean);
      const all = [...cluster.waiting.values()];
      const matching = all.filter((pod) => {
        const text = `${pod.namespace}/${pod.name} ns:${pod.namespace} ${pod.owner?.[1] ?? ''} ${pod.why} ${pod.asks}${pod.gang ? ` gang:${pod.name} ${pod.gang.members.map(([name]) => name).join(' ')}` : ''}`.toLowerCase();
        return words.every((word) => text.includes(word));
      }).sort(ORDERS[order.value]);
      const gangs = all.filter((pod) => pod.gang).length;
      fill(title, `${plural(cluster.waitingPods, 'pod waits', 'pods wait')}${gangs ? ` · ${plural(gangs, 'gang')}` : ''}`);
      toolbar.hidden = all.length === 0;
      reconcile(list, matching.slice(0, shown), (pod) => pod.uid, item);
      fill(foot, matching.length > shown ? h('button', { type: 'button', onclick: () => { shown += PAGE; app.update(); } }, `Show more of ${count(matching.length)}`) : null);
      if (all.length === 0) fill(empty, emptyState('Nothing waits', 'Every pod that asks for a card has one.'));
      else if (matching.length === 0) fill(empty, emptyState('No waiting pod matches', h('p', null, 'Nothing matches ', h('code', null, place.filter), '.')));
      else fill(empty);
    },
  };
}
