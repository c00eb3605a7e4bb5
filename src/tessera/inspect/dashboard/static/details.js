// @ts-check
/**
 * The panel beside the map: a card, a node or a pod. What the page knows is shown at once; what `explain` and `top` know
 * follows from the server, and again when the object changes.
 */

import { get } from './api.js';
import { bar, properties, swatch } from './controls.js';
import { fill, h } from './dom.js';
import { clock, count, duration, mib, moment, percent, plural, size, withoutUuids } from './format.js';
import { NOTHING, go, linkTo, readPlace } from './place.js';

/**
 * @typedef {import('./cluster.js').Card} Card
 * @typedef {import('./cluster.js').Cluster} Cluster
 * @typedef {import('./place.js').Place} Place
 * @typedef {(slice: import('./cluster.js').Slice) => import('./palette.js').Look | null} LookOf
 */

/** Milliseconds between two requests for the same object. */
const REFRESH = 2000;

/** @param {Partial<Place>} changes */
const link = (changes) => linkTo({ ...readPlace(), ...changes });
/** @param {Card} card */
export const cardLink = (card) => link({ ...NOTHING, node: card.node, card: card.uuid });
/** @param {string} namespace @param {string} name */
export const podLink = (namespace, name) => link({ ...NOTHING, pod: `${namespace}/${name}` });
/** @param {string} name */
export const nodeLink = (name) => link({ ...NOTHING, node: name });

export class Details {
  /** @param {HTMLElement} element */
  constructor(element) {
    this.element = element;
    this.heading = h('h2', { tabindex: '-1', id: 'details-title' });
    this.kind = h('p', { class: 'kind' });
    this.summary = h('div', { class: 'summary' });
    this.answer = h('div', { class: 'answer' });
    fill(element,
      h('div', { class: 'details-head' }, h('div', null, this.kind, this.heading),
        h('button', { type: 'button', class: 'icon-button', 'aria-label': 'Close the details', title: 'Close (Esc)', onclick: () => this.close() }, '✕')),
      this.summary, this.answer);
    this.target = '';
    this.fetched = '';
    this.timer = 0;
    /** @type {AbortController | null} */
    this.request = null;
    /** @type {HTMLElement | null} */
    this.opener = null;
  }

  /** Where the focus goes when the panel closes. @param {HTMLElement} opener */
  openFrom(opener) {
    this.opener = opener;
  }

  close() {
    go(NOTHING);
    this.opener?.focus();
    this.opener = null;
  }

  /** @param {Cluster | null} cluster @param {Place} place @param {LookOf} lookOf */
  show(cluster, place, lookOf) {
    const target = place.card ? `card ${place.node} ${place.card}` : place.node ? `node ${place.node}` : place.pod ? `pod ${place.pod}` : '';
    this.element.hidden = target === '' || cluster === null;
    if (target === '' || cluster === null) {
      this.target = target;
      this.fetched = '';
      this.request?.abort();
      return;
    }
    if (target !== this.target) {
      this.target = target;
      this.fetched = '';
      fill(this.answer);
      this.element.scrollTop = 0;
      if (this.opener) this.heading.focus();
    }
    const content = place.card ? this.#card(cluster, place, lookOf) : place.node ? this.#node(cluster, place) : this.#pod(cluster, place, lookOf);
    const text = JSON.stringify([content.version, place.time]);
    if (text === this.fetched) return;
    const hadFocus = this.summary.contains(document.activeElement);
    fill(this.summary, ...content.nodes);
    if (hadFocus) this.heading.focus();
    const isFirst = this.fetched === '';
    this.fetched = text;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#ask(content.path, { ...content.query, time: place.time }), isFirst ? 0 : REFRESH);
  }

  /** @param {Cluster} cluster @param {Place} place @param {LookOf} lookOf */
  #card(cluster, place, lookOf) {
    const card = cluster.card(place.node, place.card);
    fill(this.kind, 'Card of ', h('a', { href: nodeLink(place.node) }, place.node));
    const asked = { path: 'card', query: { node: place.node, card: place.card } };
    if (!card) {
      fill(this.heading, place.card);
      return { ...asked, version: 'gone', nodes: [h('p', { class: 'note' }, 'This card is not in the cluster now.')] };
    }
    fill(this.heading, `Card ${card.index}`);
    const granted = card.slices.reduce((sum, slice) => sum + slice.memory, 0);
    const cores = card.slices.reduce((sum, slice) => sum + slice.cores, 0);
    const slots = card.slices.reduce((sum, slice) => sum + slice.slots, 0);
    const nodes = [
      card.state ? h('p', { class: 'note bad' }, card.state) : null,
      h('div', { class: 'meters' },
        meter('Memory', granted, card.memory, mib, card.used),
        meter('Cores', cores, card.cores, (value) => `${count(value)} %`, null),
        meter('Slots', slots, card.slots, count, null)),
      properties([
        ['Model', card.model], ['UUID', h('code', null, card.uuid)], ['Sharing', card.mode], ['NVLink group', card.group], ['NUMA node', String(card.numa ?? '')],
        ['Utilisation', card.utilization === null ? '' : `${card.utilization} %`],
      ]),
      h('h3', null, card.slices.length ? plural(card.slices.length, 'slice') : 'No slices: the card is free'),
      h('ul', { class: 'slices' }, ...card.slices.map((slice) => sliceRow(slice, card, cluster, lookOf))),
      ...(card.claims.length ? [h('h3', null, plural(card.claims.length, 'nomination')), h('ul', { class: 'slices claims' }, ...card.claims.map((claim) => claimRow(claim, cluster)))] : []),
    ];
    return { ...asked, version: [card, card.slices.map((slice) => cluster.leavesFor(card.node, slice.pod)?.uid ?? '')], nodes };
  }

  /** @param {Cluster} cluster @param {Place} place */
  #node(cluster, place) {
    const node = cluster.nodes.get(place.node);
    fill(this.kind, 'Node');
    fill(this.heading, place.node);
    const asked = { path: 'node', query: { name: place.node } };
    if (!node) return { ...asked, version: 'gone', nodes: [h('p', { class: 'note' }, 'This node is not in the cluster now.')] };
    const total = (/** @type {(card: Card) => number} */ amount) => node.cards.reduce((sum, card) => sum + amount(card), 0);
    const nodes = [
      node.problem ? h('p', { class: 'note bad' }, node.problem) : null,
      h('div', { class: 'meters' },
        meter('Memory', total((card) => granted(card)), total((card) => card.memory), size, node.cards.some((card) => card.used !== null) ? total((card) => card.used ?? 0) : null),
        meter('Cores', total((card) => card.slices.reduce((sum, slice) => sum + slice.cores, 0)), total((card) => card.cores), (value) => `${count(value)} %`, null)),
      h('h3', null, plural(node.cards.length, 'card')),
      h('ul', { class: 'slices' }, ...node.cards.map((card) =>
        h('li', null, h('a', { href: cardLink(card) }, `Card ${card.index}`), h('span', { class: 'slice-model' }, card.state || card.model),
          h('span', { class: 'number' }, percent(granted(card), card.memory)), bar([{ share: granted(card) / card.memory, kind: 'granted' }])))),
    ];
    return { ...asked, version: node, nodes };
  }

  /** @param {Cluster} cluster @param {Place} place @param {LookOf} lookOf */
  #pod(cluster, place, lookOf) {
    const slash = place.pod.indexOf('/');
    const [namespace, name] = [place.pod.slice(0, slash), place.pod.slice(slash + 1)];
    const pod = cluster.podNamed(namespace, name);
    const rows = [...cluster.waiting.values()].filter((one) => one.namespace === namespace);
    const waiting = rows.find((one) => !one.gang && one.name === name);
    const gang = rows.find((one) => one.gang?.members.some(([member]) => member === name));
    fill(this.kind, `Pod in ${namespace}`);
    fill(this.heading, name);
    const asked = { path: 'pod', query: { namespace, name } };
    if (!pod) {
      return {
        ...asked,
        version: waiting ?? gang ?? 'gone',
        nodes: waiting
          ? [h('p', { class: 'note warn' }, `Waiting since ${moment(waiting.since)}`), properties([['Asks', waiting.asks], ['Why', waiting.why], ['Nearest', waiting.nearest], ['Smallest change', waiting.change]]), ...claimed(cluster, waiting.uid)]
          : gang
            ? [h('p', { class: 'note warn' }, gang.since === null ? 'Waiting with its gang' : `Its gang waits since ${moment(gang.since)}`), properties([['Gang', gangLink(gang.name)], ['Why', gang.why]])]
            : [h('p', { class: 'note' }, 'This pod holds no card now.')],
      };
    }
    const cards = cluster.cardsOf(pod.uid);
    const nodes = [
      properties([
        ['State', pod.state], ['Gang', pod.gang ? gangLink(pod.gang) : ''], ['Held until', pod.until === null ? '' : moment(pod.until)], ['Leaves for', leavesFor(cluster, cards, pod.uid)], ['Owner', pod.ownerName ? `${pod.ownerKind} ${pod.ownerName}` : ''],
        ['Since', pod.since === null ? '' : `${moment(pod.since)} (${duration(cluster.now() - pod.since)})`],
        ['Node', cards.length ? h('a', { href: nodeLink(cards[0].node) }, cards[0].node) : ''],
      ]),
      h('h3', null, `Holds slices of ${plural(cards.length, 'card')}`),
      h('ul', { class: 'slices' }, ...cards.flatMap((card) => card.slices.filter((slice) => slice.pod === pod.uid).map((slice) =>
        h('li', null, swatch(lookOf(slice)), h('a', { href: cardLink(card) }, `Card ${card.index}`), h('span', { class: 'slice-model' }, slice.profile || card.model),
          h('span', { class: 'number' }, amounts(slice)), used(slice))))),
    ];
    return { ...asked, version: [pod, cards.map((card) => [card.index, card.slices.filter((slice) => slice.pod === pod.uid)])], nodes };
  }

  /** @param {string} path @param {Record<string, string | number | null>} query */
  async #ask(path, query) {
    this.request?.abort();
    const request = new AbortController();
    this.request = request;
    if (!this.answer.hasChildNodes()) fill(this.answer, h('p', { class: 'muted' }, 'Asking …'));
    try {
      const found = await get(path, query, request.signal);
      if (!request.signal.aborted) fill(this.answer, ...answerNodes(found, path));
    } catch (error) {
      if (!request.signal.aborted) fill(this.answer, h('p', { class: 'note warn' }, error instanceof Error ? error.message : String(error)));
    }
  }
}

/** @param {import('./cluster.js').Slice} slice */
const amounts = (slice) => `${mib(slice.memory)}${slice.cores ? `, ${slice.cores} % cores` : ''}`;

/** @param {Card} card */
const granted = (card) => card.slices.reduce((sum, slice) => sum + slice.memory, 0);

/** @param {import('./cluster.js').Slice} slice */
function used(slice) {
  if (slice.used === null) return null;
  return h('span', { class: 'used' }, bar([{ share: slice.memory ? slice.used / slice.memory : 0, kind: 'used' }]),
    h('span', { class: 'number' }, `${mib(slice.used)} used${slice.utilization === null ? '' : `, ${slice.utilization} % busy`}`));
}

/** @param {string} name */
const gangLink = (name) => h('a', { href: link({ ...NOTHING, view: 'waiting', filter: `gang:${name}` }) }, name);

/** A link to the pod or the gang that claims something. @param {import('./cluster.js').Claim} claim */
const claimant = (claim) => (claim.isGang
  ? h('a', { href: link({ ...NOTHING, view: 'waiting', filter: `gang:${claim.name}` }) }, `gang ${claim.namespace}/${claim.name}`)
  : h('a', { href: podLink(claim.namespace, claim.name) }, `${claim.namespace}/${claim.name}`));

/** The nominated pod for which a pod leaves. @param {Cluster} cluster @param {Card[]} cards  that it holds @param {string} uid */
function leavesFor(cluster, cards, uid) {
  const claim = cards.length ? cluster.leavesFor(cards[0].node, uid) : null;
  return claim ? claimant(claim) : '';
}

/** What a pod claims of cards, and which pods leave for it. @param {Cluster} cluster @param {string} uid */
function claimed(cluster, uid) {
  const cards = cluster.cardsOf(uid);
  if (cards.length === 0) return [];
  return [h('h3', null, `Nominated for ${plural(cards.length, 'card')}`), h('ul', { class: 'slices claims' }, ...cards.flatMap((card) => card.claims.filter((claim) => claim.uid === uid).map((claim) => claimRow(claim, cluster, card))))];
}

/** @param {import('./cluster.js').Claim} claim @param {Cluster} cluster @param {Card} [card]  to name instead of the pod */
function claimRow(claim, cluster, card) {
  const leaving = claim.leaving.map((uid) => cluster.pods.get(uid)).filter((pod) => pod !== undefined);
  return h('li', null,
    card ? h('a', { href: cardLink(card) }, `${card.node} · card ${card.index}`) : claimant(claim),
    h('span', { class: 'number' }, `${mib(claim.memory)}${claim.cores ? `, ${claim.cores} % cores` : ''}`),
    h('span', { class: 'claim-note' }, claim.until === null ? 'nominated' : `nominated until ${moment(claim.until)}`),
    leaving.length ? h('span', { class: 'claim-note' }, 'for it leave: ', ...leaving.flatMap((pod, at) => [at ? ', ' : '', h('a', { href: podLink(pod.namespace, pod.name) }, `${pod.namespace}/${pod.name}`)])) : h('span', { class: 'claim-note' }, 'all its victims have left'));
}

/** @param {import('./cluster.js').Slice} slice @param {Card} card @param {Cluster} cluster @param {LookOf} lookOf */
function sliceRow(slice, card, cluster, lookOf) {
  const pod = cluster.pods.get(slice.pod);
  const claim = cluster.leavesFor(card.node, slice.pod);
  const holder = pod?.state === 'held'
    ? h('span', null, 'held for gang ', gangLink(pod.gang), pod.until === null ? '' : ` until ${moment(pod.until)}`)
    : pod ? h('a', { href: podLink(pod.namespace, pod.name) }, `${pod.namespace}/${pod.name}`) : slice.pod;
  return h('li', null, swatch(lookOf(slice)), holder,
    slice.profile ? h('span', { class: 'slice-model' }, slice.profile) : null,
    h('span', { class: 'number' }, amounts(slice)),
    claim ? h('span', { class: 'claim-note' }, 'leaves for ', claimant(claim)) : null, used(slice));
}

/** @param {string} name @param {number} part @param {number} whole @param {(value: number) => string} format @param {number | null} inUse */
function meter(name, part, whole, format, inUse) {
  return h('div', { class: 'meter' },
    h('span', { class: 'meter-name' }, name),
    h('span', { class: 'number' }, `${format(part)} of ${format(whole)}`),
    bar([{ share: part / whole, kind: 'granted' }, ...(inUse === null ? [] : [{ share: inUse / whole, kind: 'used' }])]),
    inUse === null ? null : h('span', { class: 'meter-used' }, `${format(inUse)} used`));
}

/** @param {any} found @param {string} path */
function answerNodes(found, path) {
  const nodes = [];
  if (found.lines?.length) {
    const isTable = path !== 'pod';
    const title = isTable ? 'What top says' : 'What explain says';
    const lines = h('div', { class: isTable ? 'lines table' : 'lines', tabindex: '0', role: 'region', 'aria-label': title }, ...found.lines.map((/** @type {any} */ line) => h('div', { class: `line style-${line.style}` }, line.text || '\u00a0')));
    // A table is wider than the panel, and the panel has its figures: the reader may unfold it.
    if (isTable) nodes.push(h('details', { class: 'more-lines' }, h('summary', null, title), lines));
    else nodes.push(h('h3', null, title), lines);
  }
  const facts = Object.entries(found.facts ?? {}).filter(([, value]) => value !== null && value !== '' && typeof value !== 'object');
  if (facts.length) nodes.push(h('h3', null, 'Facts'), properties(facts.map(([key, value]) => [words(key), String(value)])));
  if (found.history?.length) {
    nodes.push(h('h3', null, 'History'));
    nodes.push(h('ol', { class: 'history' }, ...found.history.map((/** @type {any} */ record) =>
      h('li', null, h('a', { href: link({ view: 'time', time: record.time }), class: 'number' }, clock(record.time)), h('span', { title: record.text ?? '' }, withoutUuids(record.text ?? record.kind))))));
  }
  return nodes;
}

/** @param {string} key  camelCase or snake_case */
function words(key) {
  const text = key.replace(/_/g, ' ').replace(/([a-z])([A-Z])/g, '$1 $2').toLowerCase();
  return text.charAt(0).toUpperCase() + text.slice(1);
}
