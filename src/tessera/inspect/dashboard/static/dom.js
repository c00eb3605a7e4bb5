// @ts-check
/**
 * Elements made of values. Text only ever becomes a text node: what tenants name is never parsed as markup.
 */

/** Characters that change how their neighbours are shown: controls, and marks that reverse or hide text. */
const DECEPTIVE = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/**
 * The text with deceptive characters made visible.
 * @param {unknown} text
 * @returns {string}
 */
export function visible(text) {
  return String(text).replace(DECEPTIVE, '\ufffd');
}

/**
 * @typedef {Node | string | number | null | undefined | false} Child
 * @typedef {Record<string, unknown>} Properties  `class`, attributes, `on<event>` handlers, and `--name` for CSS variables
 */

/**
 * @param {Element} element
 * @param {Properties} properties
 */
function assign(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else if (name.startsWith('--')) /** @type {HTMLElement} */ (element).style.setProperty(name, String(value));
    else element.setAttribute(name, value === true ? '' : name === 'class' ? String(value) : visible(value));
  }
}

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Properties | null} [properties]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  if (properties) assign(element, properties);
  fill(element, ...children);
  return element;
}

const SVG = 'http://www.w3.org/2000/svg';

/**
 * @param {string} tag
 * @param {Properties} properties
 * @param {...Child} children
 * @returns {SVGElement}
 */
export function svg(tag, properties, ...children) {
  const element = /** @type {SVGElement} */ (document.createElementNS(SVG, tag));
  assign(element, properties);
  fill(element, ...children);
  return element;
}

/**
 * Replace the children of an element.
 * @param {Element} element
 * @param {...(Child | Child[])} children
 */
export function fill(element, ...children) {
  const nodes = [];
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    nodes.push(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
  element.replaceChildren(...nodes);
}

/**
 * Make the children of `parent` those of `items`, in their order. An element whose item is unchanged stays, with its focus.
 * @template Item
 * @param {Element} parent
 * @param {Item[]} items
 * @param {(item: Item) => string} keyOf
 * @param {(item: Item) => HTMLElement} create
 */
export function reconcile(parent, items, keyOf, create) {
  /** @type {Map<string, HTMLElement>} */
  const present = new Map();
  for (const child of parent.children) present.set(/** @type {HTMLElement} */ (child).dataset.key ?? '', /** @type {HTMLElement} */ (child));
  let position = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    const content = JSON.stringify(item);
    let element = present.get(key);
    if (element && element.dataset.content !== content) {
      const fresh = create(item);
      const hadFocus = element.contains(document.activeElement);
      if (position === element) position = fresh;
      element.replaceWith(fresh);
      if (hadFocus) /** @type {HTMLElement | null} */ (fresh.querySelector('a, button'))?.focus();
      element = fresh;
    }
    element ??= create(item);
    element.dataset.key = key;
    element.dataset.content = content;
    present.delete(key);
    if (position === element) position = element.nextElementSibling;
    else parent.insertBefore(element, position);
  }
  for (const gone of present.values()) gone.remove();
}
