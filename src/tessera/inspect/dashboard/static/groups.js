// @ts-check
/** Which cards are shown, in which order and below which headings. */

import { compareNames, plural, shortModel } from './format.js';

/**
 * @typedef {import('./cluster.js').Card} Card
 * @typedef {import('./cluster.js').Cluster} Cluster
 * @typedef {{label: string, note: string, node: string, problem: string, cards: Card[]}} Block  `note`: what its cards are, if they are all the same
 * @typedef {{title: string, cards: number, blocks: Block[]}} Section
 */

/**
 * @param {Cluster} cluster
 * @param {string} grouping
 * @param {import('./filter.js').Predicate | null} filter
 * @returns {Section[]}
 */
export function groupCards(cluster, grouping, filter) {
  const nodes = [...cluster.nodes.values()].sort((a, b) => compareNames(a.name, b.name));
  /** @type {Map<string, Block[]>} */
  const sections = new Map();
  /** @param {string} title @param {Block} block */
  const add = (title, block) => {
    const blocks = sections.get(title);
    if (blocks) blocks.push(block);
    else sections.set(title, [block]);
  };
  for (const node of nodes) {
    const cards = filter ? node.cards.filter((card) => filter(card, cluster)) : node.cards;
    if (cards.length === 0 && (filter || grouping !== 'node')) continue;
    if (grouping === 'node') {
      add('', { label: node.name, note: kinds(cards), node: node.name, problem: node.problem, cards });
      continue;
    }
    for (const [name, part] of partition(cards, grouping === 'model' ? (card) => card.model : (card) => card.group)) {
      const title = grouping === 'model' ? name : name === '' ? 'No NVLink' : `NVLink groups of ${plural(part.length, 'card')}`;
      const label = grouping === 'nvlink' && name ? `${node.name} · ${name}` : node.name;
      add(title, { label, note: grouping === 'model' ? '' : kinds(part), node: node.name, problem: node.problem, cards: part });
    }
  }
  return [...sections]
    .sort(([a], [b]) => (grouping === 'nvlink' ? compareNames(b, a) : compareNames(a, b)))
    .map(([title, blocks]) => ({ title, cards: blocks.reduce((sum, block) => sum + block.cards.length, 0), blocks }));
}

/** @param {Card[]} cards */
function kinds(cards) {
  const [first] = cards;
  return first && cards.every((card) => card.model === first.model) ? `${cards.length} × ${shortModel(first.model)}` : '';
}

/** @param {Card[]} cards @param {(card: Card) => string} nameOf */
function partition(cards, nameOf) {
  /** @type {Map<string, Card[]>} */
  const parts = new Map();
  for (const card of cards) {
    const part = parts.get(nameOf(card));
    if (part) part.push(card);
    else parts.set(nameOf(card), [card]);
  }
  return parts;
}
