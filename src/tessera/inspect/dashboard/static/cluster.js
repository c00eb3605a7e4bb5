// @ts-check
/**
 * The cluster as the server describes it: documents become objects with names, and later ones change them in place.
 * One writer: `Cluster.apply`.
 */

/**
 * @typedef {{name: string, problem: string, cards: Card[]}} ClusterNode
 * @typedef {{uid: string, node: string, namespace: string, name: string, ownerKind: string, ownerName: string, state: string, since: number | null,
 *   gang: string, until: number | null}} Pod  `state`: also `held`, which is a place that is held for a member of a gang, and no pod
 * @typedef {{size: number, required: number, exist: number, gated: number, bound: number, fit: number | null, until: number | null,
 *   members: [string, string, string][]}} WaitingGang  members: name, state, node
 * @typedef {{uid: string, namespace: string, name: string, owner: [string, string] | null, since: number, asks: string, why: string,
 *   nearest: string, change: string, attempts: number, gang: WaitingGang | null}} WaitingPod  a pod, or a gang
 * @typedef {{kind: string, name: string, live: boolean, journal: {from: number, to: number} | null, problem: string}} Source
 * @typedef {{pod: string, memory: number, cores: number, slots: number, used: number | null, utilization: number | null, profile: string}} Slice
 * @typedef {{uid: string, namespace: string, name: string, isGang: boolean, memory: number, cores: number, until: number | null, leaving: string[]}} Claim
 *   of a nominated pod, or for a member of a gang; `leaving`: uids of the pods that leave for it
 * @typedef {{node: string, index: number, uuid: string, model: string, mode: string, memory: number, cores: number, slots: number,
 *   state: string, group: string, numa: number, slices: Slice[], used: number | null, utilization: number | null, claims: Claim[]}} Card
 * @typedef {any} Totals
 * @typedef {{cards: Set<string>, placed: Pod[], waiting: boolean}} Changes  `cards`: their keys; `waiting`: rows came, went or changed
 */

/** @param {any} raw @returns {Slice} */
function readSlice(raw) {
  const [pod, memory, cores, slots, used, utilization, profile] = raw;
  return { pod, memory, cores, slots, used, utilization, profile: profile ?? '' };
}

/** @param {any} raw @param {string} node @returns {Card} */
function readCard(raw, node) {
  const [index, uuid, model, mode, memory, cores, slots, state, group, numa, slices, used, utilization, claims] = raw;
  return {
    node, index, uuid, model, mode, memory, cores, slots, state, group, numa,
    slices: slices.map(readSlice), used, utilization, claims: claims ?? [],
  };
}

/** @param {string} name @param {any} raw @returns {ClusterNode} */
function readNode(name, raw) {
  return { name, problem: raw.problem, cards: raw.cards.map((/** @type {any} */ card) => readCard(card, name)) };
}

/** @param {string} uid @param {string} node @param {any} raw @returns {Pod} */
function readPod(uid, node, raw) {
  const [namespace, name, ownerKind, ownerName, state, since, gang, until] = raw;
  return { uid, node, namespace, name, ownerKind, ownerName, state, since, gang: gang ?? '', until: until ?? null };
}

/** What a reader would see change. @param {Card} card */
const fingerprint = (card) => JSON.stringify([card.slices.map((slice) => slice.pod), card.state, card.claims.map((claim) => claim.uid)]);

/** @param {Card} card */
export function cardKey(card) {
  return `${card.node}/${card.uuid}`;
}

export class Cluster {
  /** @param {any} document  of api/state, whole */
  constructor(document) {
    /** @type {Source} */
    this.source = document.source;
    this.version = 0;
    this.time = -Infinity;
    this.receivedAt = performance.now();
    /** @type {Totals} */
    this.totals = null;
    /** @type {Map<string, Pod>} */
    this.pods = new Map();
    /** the places that are held for gangs: few, and asked for with every slice that is painted @type {Set<string>} */
    this.held = new Set();
    /** @type {Map<string, ClusterNode>} */
    this.nodes = new Map();
    /** @type {Map<string, WaitingPod>} */
    this.waiting = new Map();
    this.apply(document);
  }

  /** @param {any} document  of api/state, whole or what is newer than this version @returns {Changes} */
  apply(document) {
    /** @type {Changes} */
    const changes = { cards: new Set(), placed: [], waiting: false };
    const isFirst = this.nodes.size === 0;
    // A kept state is some seconds old: the clock does not go back for it.
    [this.time, this.receivedAt] = [Math.max(document.time, this.now()), performance.now()];
    this.version = document.version;
    // What the journal has is read when the reader asks for it.
    this.source = { ...document.source, journal: this.source.journal };
    this.totals = document.totals ?? this.totals;
    for (const [name, node] of Object.entries(document.nodes)) this.#replaceNode(name, node, isFirst ? null : changes);
    for (const [uid, row] of Object.entries(document.waiting)) {
      changes.waiting = true;
      if (row) this.waiting.set(uid, row);
      else this.waiting.delete(uid);
    }
    return changes;
  }

  /** @param {string} name @param {any} raw  null if it is gone @param {Changes | null} changes */
  #replaceNode(name, raw, changes) {
    const before = this.nodes.get(name);
    const known = new Set();
    for (const uid of before ? before.cards.flatMap((card) => card.slices.map((slice) => slice.pod)) : []) {
      // A pod may be on another node since.
      if (this.pods.get(uid)?.node !== name) continue;
      known.add(uid);
      this.pods.delete(uid);
      this.held.delete(uid);
    }
    if (!raw) {
      this.nodes.delete(name);
      return;
    }
    for (const uid in raw.pods) {
      const pod = readPod(uid, name, raw.pods[uid]);
      if (pod.state === 'held') this.held.add(uid);
      else if (!known.has(uid) && !this.pods.has(uid)) changes?.placed.push(pod);
      this.pods.set(uid, pod);
    }
    const node = readNode(name, raw);
    if (changes) {
      const old = new Map(before?.cards.map((card) => [card.uuid, fingerprint(card)]));
      for (const card of node.cards) if (old.get(card.uuid) !== fingerprint(card)) changes.cards.add(cardKey(card));
    }
    this.nodes.set(name, node);
  }

  /** The time by the server's clock; the reader's may be wrong. */
  now() {
    return this.source.live ? this.time + (performance.now() - this.receivedAt) / 1000 : this.time;
  }

  /** @param {string} node @param {string} uuid */
  card(node, uuid) {
    return this.nodes.get(node)?.cards.find((card) => card.uuid === uuid) ?? null;
  }

  /** @param {string} namespace @param {string} name @returns {Pod | null} */
  podNamed(namespace, name) {
    for (const pod of this.pods.values()) if (pod.name === name && pod.namespace === namespace) return pod;
    return null;
  }

  /** The cards on which a pod holds a slice, or claims one. @param {string} uid */
  cardsOf(uid) {
    const cards = [];
    for (const node of this.nodes.values()) {
      for (const card of node.cards) if (card.slices.some((slice) => slice.pod === uid) || card.claims.some((claim) => claim.uid === uid)) cards.push(card);
    }
    return cards;
  }

  /** The claim for which a slice's pod leaves. @param {string} node @param {string} uid @returns {Claim | null} */
  leavesFor(node, uid) {
    for (const card of this.nodes.get(node)?.cards ?? []) {
      const claim = card.claims.find((one) => one.leaving.includes(uid));
      if (claim) return claim;
    }
    return null;
  }

  /** Pods that wait, those of gangs included. */
  get waitingPods() {
    let pods = 0;
    for (const one of this.waiting.values()) pods += one.gang ? one.gang.exist - one.gang.bound : 1;
    return pods;
  }

  get cardCount() {
    let cards = 0;
    for (const node of this.nodes.values()) cards += node.cards.length;
    return cards;
  }
}
