// @ts-check
/**
 * The filter's language: words that a card must match, all of them. `key:word` looks at one property, `-` excludes, quotes
 * keep spaces. `is:` takes a state.
 *
 *     ns:team-a model:h100 -is:cordoned "node 7"
 */

/**
 * @typedef {import('./cluster.js').Card} Card
 * @typedef {import('./cluster.js').Cluster} Cluster
 * @typedef {(card: Card, cluster: Cluster) => string[]} Reader
 */

/** @param {Card} card @param {Cluster} cluster */
const holders = (card, cluster) => card.slices.map((slice) => cluster.pods.get(slice.pod)).filter((pod) => pod !== undefined);

/** @type {Record<string, Reader>} */
const KEYS = {
  node: (card) => [card.node],
  card: (card) => [card.uuid, String(card.index)],
  model: (card) => [card.model],
  mode: (card) => [card.mode],
  ns: (card, cluster) => holders(card, cluster).map((pod) => pod.namespace),
  pod: (card, cluster) => holders(card, cluster).map((pod) => pod.name),
  gang: (card, cluster) => holders(card, cluster).map((pod) => pod.gang).filter(Boolean),
  owner: (card, cluster) => holders(card, cluster).map((pod) => pod.ownerName),
};
const EXACT = new Set(['ns', 'mode']);

/** @param {Card} card @param {(slice: import('./cluster.js').Slice) => number} amount */
const sum = (card, amount) => card.slices.reduce((total, slice) => total + amount(slice), 0);

/** @type {Record<string, (card: Card) => boolean>} */
export const STATES = {
  free: (card) => card.slices.length === 0 && card.state === '',
  full: (card) => sum(card, (slice) => slice.memory) >= card.memory * 0.95 || (card.cores > 0 && sum(card, (slice) => slice.cores) >= card.cores),
  partial: (card) => card.slices.length > 0 && !STATES.full(card),
  shared: (card) => card.slices.length > 1,
  idle: (card) => card.slices.some((slice) => slice.utilization === 0),
  unhealthy: (card) => card.state.startsWith('unhealthy'),
  cordoned: (card) => card.state.startsWith('cordoned'),
  held: (card) => card.state.startsWith('held'),
  nominated: (card) => card.claims.length > 0,
  problem: (card) => card.state !== '',
};

/** @typedef {(card: Card, cluster: Cluster) => boolean} Predicate */

/**
 * @param {string} text
 * @returns {Predicate | null}  null if everything matches
 */
export function parseFilter(text) {
  /** @type {Predicate[]} */
  const all = [];
  for (const match of text.matchAll(/(-?)(?:([a-z]+):)?(?:"([^"]*)"?|(\S+))/g)) {
    const [, minus, key, quoted, plain] = match;
    const word = (quoted ?? plain ?? '').toLowerCase();
    if (!word) continue;
    const test = key === 'is' ? (STATES[word] ?? (() => false)) : key && key in KEYS ? oneKey(key, word) : anyKey(key ? `${key}:${word}` : word);
    all.push(minus ? (card, cluster) => !test(card, cluster) : test);
  }
  if (all.length === 0) return null;
  return (card, cluster) => all.every((test) => test(card, cluster));
}

/** @param {string} key @param {string} word @returns {Predicate} */
function oneKey(key, word) {
  const read = KEYS[key];
  return EXACT.has(key)
    ? (card, cluster) => read(card, cluster).some((text) => text.toLowerCase() === word)
    : (card, cluster) => read(card, cluster).some((text) => text.toLowerCase().includes(word));
}

/** @param {string} word @returns {Predicate} */
function anyKey(word) {
  const readers = Object.values(KEYS);
  return (card, cluster) => readers.some((read) => read(card, cluster).some((text) => text.toLowerCase().includes(word)));
}

/**
 * The filter with a term added, or removed if it has it.
 * @param {string} text @param {string} key @param {string} word
 */
export function toggleTerm(text, key, word) {
  const term = `${key}:${/\s/.test(word) ? `"${word}"` : word}`;
  /** @type {string[]} */
  const terms = text.match(/-?(?:[a-z]+:)?(?:"[^"]*"?|\S+)/g) ?? [];
  return (terms.includes(term) ? terms.filter((other) => other !== term) : [...terms, term]).join(' ');
}
