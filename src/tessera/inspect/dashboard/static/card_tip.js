// @ts-check
/** One card in a few lines beside the pointer, and in a sentence for those who hear it. */

import { h, visible } from './dom.js';
import { count, mib, percent, plural, size, sizeOf } from './format.js';

/**
 * @typedef {import('./cluster.js').Card} Card
 * @typedef {import('./cluster.js').Cluster} Cluster
 * @typedef {import('./layout.js').Box} Box
 */

/** Slices that are listed before "more". */
const LISTED = 6;
/** Pixels between the tip and what it is about, and to the edge. */
const DISTANCE = 8;
const EDGE = 4;

/** @param {Card} card */
const granted = (card) => card.slices.reduce((sum, slice) => sum + slice.memory, 0);

export class CardTip {
  /** @param {HTMLElement} scroller  that it stands over @param {number} padding  of the map in it */
  constructor(scroller, padding) {
    this.scroller = scroller;
    this.padding = padding;
    this.element = h('div', { class: 'tip', role: 'presentation', hidden: true });
  }

  /** @param {Box} box @param {Card} card @param {Cluster} cluster */
  showCard(box, card, cluster) {
    this.show(box,
      h('strong', null, `${card.node} · card ${card.index}`),
      h('span', null, [card.model, card.mode, card.state].filter(Boolean).join(' · ')),
      h('span', null, `${sizeOf(granted(card), card.memory)} granted${card.used === null ? '' : `, ${size(card.used)} used`}`),
      ...card.slices.slice(0, LISTED).map((slice) => {
        const pod = cluster.pods.get(slice.pod);
        return h('span', { class: 'tip-slice' }, h('span', null, pod ? `${pod.namespace}/${pod.name}` : slice.pod), h('span', { class: 'number' }, mib(slice.memory)));
      }),
      ...card.claims.map((claim) => h('span', { class: 'tip-slice' }, h('span', null, `nominated: ${claim.isGang ? 'gang ' : ''}${claim.namespace}/${claim.name}`), h('span', { class: 'number' }, mib(claim.memory)))),
      ...(card.slices.length > LISTED ? [h('span', null, `and ${count(card.slices.length - LISTED)} more`)] : []),
    );
  }

  /** Below a box, or above it if there is no room. @param {Box} box @param {...HTMLElement} content */
  show(box, ...content) {
    const { element, scroller, padding } = this;
    element.replaceChildren(...content);
    element.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = element;
    const left = box.x + padding + box.width / 2 - width / 2;
    const top = box.y + padding - scroller.scrollTop;
    const below = top + box.height + DISTANCE;
    element.style.left = `${Math.max(EDGE, Math.min(scroller.clientWidth - width - EDGE, left))}px`;
    element.style.top = `${below + height < scroller.clientHeight ? below : Math.max(EDGE, top - height - DISTANCE)}px`;
  }

  hide() {
    this.element.hidden = true;
  }
}

/** One card in a sentence. @param {Card} card @param {Cluster} cluster */
export function describe(card, cluster) {
  const names = card.slices.slice(0, 4).map((slice) => cluster.pods.get(slice.pod)?.name ?? slice.pod);
  const holders = card.slices.length ? `${plural(card.slices.length, 'slice')}: ${names.join(', ')}${card.slices.length > 4 ? ' and others' : ''}` : 'free';
  return visible(`${card.node}, card ${card.index}, ${card.model}, ${card.state || 'healthy'}, ${percent(granted(card), card.memory)} of the memory granted, ${holders}${card.claims.length ? `, nominated for ${card.claims.map((claim) => claim.name).join(', ')}` : ''}`);
}
