// @ts-check
/** Small controls that several views share. */

import { fill, h } from './dom.js';

/**
 * One of a few choices, as a row of radio buttons.
 * @param {{label: string, name: string, options: [string, string][], onChoose: (value: string) => void}} settings
 */
export function choice({ label, name, options, onChoose }) {
  const inputs = options.map(([value]) => h('input', { type: 'radio', name, value, onchange: () => onChoose(value) }));
  const element = h('fieldset', { class: 'choice' }, h('legend', null, label),
    ...options.map(([, text], at) => h('label', null, inputs[at], h('span', null, text))));
  return {
    element,
    /** @param {string} value */
    set(value) {
      for (const input of inputs) input.checked = input.value === value;
    },
  };
}

/**
 * Parts of a whole as a bar; the text beside it says the same.
 * @param {{share: number, kind: string}[]} parts  shares of 1, drawn from the left, later ones over earlier ones
 */
export function bar(parts) {
  return h('span', { class: 'bar', 'aria-hidden': 'true' },
    ...parts.map(({ share, kind }) => h('span', { class: `bar-${kind}`, '--share': Math.max(0, Math.min(1, share || 0)).toFixed(4) })));
}

/**
 * A page that has nothing to show says why, and what to do.
 * @param {string} title @param {...import('./dom.js').Child} content
 */
export function emptyState(title, ...content) {
  return h('div', { class: 'empty' }, h('h2', null, title), ...content.map((child) => (child instanceof Node || child === null ? child : h('p', null, child))));
}

/** A term and its explanation, for lists of properties. @param {[string, import('./dom.js').Child | import('./dom.js').Child[]][]} pairs */
export function properties(pairs) {
  const list = h('dl', { class: 'properties' });
  fill(list, ...pairs.filter(([, value]) => value !== null && value !== '').flatMap(([term, value]) => [h('dt', null, term), h('dd', null, ...(Array.isArray(value) ? value : [value]))]));
  return list;
}

/** The sample of a look, as in the map. @param {import('./palette.js').Look | null} look */
export function swatch(look) {
  return h('span', { class: `swatch${look ? (look.striped ? ' striped' : '') : ' rest'}`, '--colour': look?.colour ?? '', 'aria-hidden': 'true' });
}
