// @ts-check
/**
 * The cluster as the server describes it: documents become objects with names, events change them in place.
 * One writer: `Cluster.apply`.
 */

/**
 * @typedef {{name: string, problem: string, cards: Card[]}} ClusterNode
 * @typedef {{uid: string, namespace: string, name: string, ownerKind: string, ownerName: string, state: string, since: number | null,
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
 * @typedef {{structure: boolean, cards: Set<string>, placed: Pod[]}} Changes  `structure`: cards came or went
 */

/** @param {any} raw @returns {Slice} */
function readSlice(raw) {
  const [pod, memory, cores, slots, used, utilization, profile] = raw;
  return { pod, memory, cores, slots, used, utilization, profile: profile ?? '' };
}

/** @param {any} raw @param {string} node @param {string[]} models @returns {Card} */
function readCard(raw, node, models) {
  const [index, uuid, model, mode, memory, cores, slots, state, group, numa, slices, used, utilization, claims] = raw;
  return {
    node, index, uuid, model: models[model] ?? 'unknown', mode, memory, cores, slots, state, group, numa,
    slices: slices.map(readSlice), used, utilization, claims: claims ?? [],
  };
}

/** @param {any} raw @param {string[]} models @returns {ClusterNode} */
function readNode(raw, models) {
  return { name: raw.name, problem: raw.problem ?? '', cards: raw.cards.map((/** @type {any} */ card) => readCard(card, raw.name, models)) };
}

/** @param {string} uid @param {any} raw @returns {Pod} */
function readPod(uid, raw) {
  const [namespace, name, ownerKind, ownerName, state, since, gang, until] = raw;
  return { uid, namespace, name, ownerKind, ownerName, state, since, gang: gang ?? '', until: until ?? null };
}

/** What a reader would see change. @param {Card} card */
const fingerprint = (card) => JSON.stringify([card.slices.map((slice) => slice.pod), card.state, card.claims.map((claim) => claim.uid)]);

/** @param {Card} card */
export function cardKey(card) {
  return `${card.node}/${card.uuid}`;
}

export class Cluster {
  /** @param {any} document  of api/state */
  constructor(document) {
    /** @type {number} */
    this.version = document.version;
    /** @type {number} */
    this.time = document.time;
    this.receivedAt = performance.now();
    /** @type {Source} */
    this.source = document.source;
    /** @type {string[]} */
    this.models = document.models;
    /** @type {Totals} */
    this.totals = document.totals;
    /** @type {Map<string, Pod>} */
    this.pods = new Map(Object.entries(document.pods).map(([uid, raw]) => [uid, readPod(uid, raw)]));
    /** the places that are held for gangs: few, and asked for with every slice that is painted @type {Set<string>} */
    this.held = new Set();
    for (const pod of this.pods.values()) if (pod.state === 'held') this.held.add(pod.uid);
    /** @type {Map<string, ClusterNode>} */
    this.nodes = new Map(document.nodes.map((/** @type {any} */ raw) => [raw.name, readNode(raw, this.models)]));
    /** @type {Map<string, WaitingPod>} */
    this.waiting = new Map(document.waiting.map((/** @type {WaitingPod} */ pod) => [pod.uid, pod]));
  }

  /**
   * @param {string} kind
   * @param {any} document
   * @returns {Changes}
   */
  apply(kind, document) {
    /** @type {Changes} */
    const changes = { structure: false, cards: new Set(), placed: [] };
    if (kind === 'nodes') this.#applyNodes(document, changes);
    else if (kind === 'waiting') this.#applyWaiting(document);
    else if (kind === 'totals') this.totals = document;
    return changes;
  }

  /** @param {any} document @param {Changes} changes */
  #applyNodes(document, changes) {
    if (document.models) this.models = document.models;
    for (const [uid, raw] of Object.entries(document.pods ?? {})) {
      this.held.delete(uid);
      if (raw === null) this.pods.delete(uid);
      else {
        const pod = readPod(uid, raw);
        if (pod.state === 'held') this.held.add(uid);
        if (!this.pods.has(uid) && pod.state !== 'held') changes.placed.push(pod);
        this.pods.set(uid, pod);
      }
    }
    for (const raw of document.nodes ?? []) {
      const before = this.nodes.get(raw.name);
      const node = readNode(raw, this.models);
      if (!before || before.cards.length !== node.cards.length || before.problem !== node.problem) changes.structure = true;
      const old = new Map((before?.cards ?? []).map((card) => [card.uuid, fingerprint(card)]));
      for (const card of node.cards) {
        if (old.get(card.uuid) !== fingerprint(card)) changes.cards.add(cardKey(card));
      }
      this.nodes.set(raw.name, node);
    }
    for (const name of document.gone ?? []) {
      if (this.nodes.delete(name)) changes.structure = true;
    }
  }

  /** @param {any} document */
  #applyWaiting(document) {
    for (const pod of document.set ?? []) this.waiting.set(pod.uid, pod);
    for (const uid of document.gone ?? []) this.waiting.delete(uid);
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
