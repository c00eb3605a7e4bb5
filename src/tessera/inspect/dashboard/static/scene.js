// @ts-check
/** From the cluster and the reader's place: which cards are shown, how slices look, and the legend that says so. */

import { cardKey } from './cluster.js';
import { parseFilter } from './filter.js';
import { groupCards } from './groups.js';
import { LEVELS } from './layout.js';
import { Looks } from './palette.js';

/**
 * @typedef {import('./cluster.js').Cluster} Cluster
 * @typedef {import('./cluster.js').Card} Card
 * @typedef {import('./cluster.js').Slice} Slice
 * @typedef {import('./place.js').Place} Place
 * @typedef {{key: string, memory: number, look: import('./palette.js').Look | null}} LegendEntry
 * @typedef {{scene: import('./card_map.js').Scene, legend: LegendEntry[], matching: number, total: number}} Prepared
 */

export function isDark() {
  return document.documentElement.dataset.theme === 'dark';
}

/** What a slice is coloured by. @param {Slice} slice @param {Cluster} cluster @param {string} colour */
function keyOf(slice, cluster, colour) {
  const pod = cluster.pods.get(slice.pod);
  if (!pod) return 'unknown';
  return colour === 'owner' ? ownerName(pod) : pod.namespace;
}

/** @param {import('./cluster.js').Pod} pod */
export function ownerName(pod) {
  return pod.ownerName ? `${pod.namespace}/${pod.ownerName}` : `${pod.namespace}/${pod.name}`;
}

/** The keys of the cards that the details are about. @param {Cluster} cluster @param {Place} place */
function selectedCards(cluster, place) {
  if (place.card) return new Set([`${place.node}/${place.card}`]);
  if (!place.pod) return new Set(/** @type {string[]} */ ([]));
  const slash = place.pod.indexOf('/');
  const [namespace, name] = [place.pod.slice(0, slash), place.pod.slice(slash + 1)];
  const pod = cluster.podNamed(namespace, name) ?? [...cluster.waiting.values()].find((one) => one.namespace === namespace && one.name === name);
  return new Set(pod ? cluster.cardsOf(pod.uid).map(cardKey) : []);
}

export class SceneMaker {
  constructor() {
    this.looks = { namespace: new Looks(), owner: new Looks() };
    /** the key in the legend that the pointer is on */
    this.emphasis = '';
  }

  /** @param {Cluster} cluster @param {Place} place @returns {Prepared} */
  prepare(cluster, place) {
    const filter = parseFilter(place.filter);
    const hides = filter !== null && !place.find;
    const sections = groupCards(cluster, place.group, hides ? filter : null);
    const colour = place.colour === 'owner' ? 'owner' : 'namespace';
    const looks = this.looks[colour];
    const amounts = this.#amounts(cluster, colour);
    looks.assign(amounts);
    const dark = isDark();
    const { emphasis } = this;
    /** @param {Card} card */
    const isDim = (card) => {
      if (filter && !hides && !filter(card, cluster)) return true;
      return emphasis !== '' && !card.slices.some((slice) => keyOf(slice, cluster, colour) === emphasis);
    };
    /** @type {Map<string, import('./palette.js').Look | null>} */
    const known = new Map();
    for (const key of amounts.keys()) known.set(key, looks.look(key, dark));
    const zoom = Number.parseInt(place.zoom, 10);
    const shown = sections.reduce((sum, section) => sum + section.cards, 0);
    let matching = shown;
    if (filter && !hides) {
      matching = 0;
      for (const node of cluster.nodes.values()) for (const card of node.cards) if (filter(card, cluster)) matching += 1;
    }
    return {
      scene: {
        sections,
        cluster,
        zoom: zoom >= 0 && zoom < LEVELS.length ? zoom : null,
        style: {
          isDark: dark,
          byUse: place.colour === 'use',
          lookOf: (slice) => known.get(keyOf(slice, cluster, colour)) ?? null,
          nameOf: (slice) => cluster.pods.get(slice.pod)?.name ?? slice.pod,
          isHeld: (slice) => cluster.held.has(slice.pod),
          colourOfNamespace: (namespace) => (colour === 'namespace' ? known.get(namespace)?.colour : null) ?? null,
        },
        isDim,
        selected: selectedCards(cluster, place),
        selectedNode: place.card ? '' : place.node,
      },
      legend: [...amounts].map(([key, memory]) => ({ key, memory, look: known.get(key) ?? null })).sort((a, b) => b.memory - a.memory),
      matching,
      total: hides ? cluster.cardCount : shown,
    };
  }

  /** The memory granted to each key. @param {Cluster} cluster @param {string} colour */
  #amounts(cluster, colour) {
    /** @type {Map<string, number>} */
    const amounts = new Map();
    for (const node of cluster.nodes.values()) {
      for (const card of node.cards) {
        for (const slice of card.slices) {
          const key = keyOf(slice, cluster, colour);
          amounts.set(key, (amounts.get(key) ?? 0) + slice.memory);
        }
      }
    }
    return amounts;
  }
}
