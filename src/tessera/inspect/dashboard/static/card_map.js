// @ts-check
/**
 * The map of all cards: a canvas as large as its window, over a scrolled area as large as the cluster. Mouse, wheel and keys
 * move a cursor; what it is on is announced. `CardTable` shows the same to those who do not see a canvas.
 */

import { cardKey } from './cluster.js';
import { h, visible } from './dom.js';
import { count, mib, percent, plural, size, sizeOf } from './format.js';
import { Layout, LEVELS, fittingLevel } from './layout.js';
import { Painter, readTheme } from './painter.js';

/**
 * @typedef {import('./cluster.js').Card} Card
 * @typedef {import('./cluster.js').Cluster} Cluster
 * @typedef {import('./groups.js').Section} Section
 * @typedef {{
 *   sections: Section[], cluster: Cluster, zoom: number | null, style: Omit<import('./painter.js').Style, 'theme'>,
 *   isDim: (card: Card) => boolean, selected: Set<string>, selectedNode: string,
 * }} Scene  `selected`: the keys of cards
 */

/** Milliseconds for which a changed card is outlined. */
const FLASH = 1600;
const PADDING = 16;

export class CardMap {
  /** @param {{onOpen: (target: {card: Card} | {node: string}) => void, onZoom: (step: number) => void, announce: (text: string) => void}} listener */
  constructor(listener) {
    this.listener = listener;
    this.canvas = h('canvas', { class: 'map-canvas', 'aria-hidden': 'true' });
    this.spacer = h('div', { class: 'map-spacer' });
    this.tip = h('div', { class: 'tip', role: 'presentation', hidden: true });
    this.scroller = h('div', {
      class: 'map', tabindex: '0', role: 'application', 'aria-roledescription': 'map of cards', 'aria-describedby': 'map-help',
    }, this.canvas, this.spacer);
    this.element = h('div', { class: 'map-frame' }, this.scroller, this.tip);
    /** @type {Scene | null} */
    this.scene = null;
    /** @type {Layout | null} */
    this.layout = null;
    /** @type {Painter | null} */
    this.painter = null;
    /** @type {import('./layout.js').Position | null} */
    this.cursor = null;
    this.cursorKey = '';
    /** what was scrolled to last, so that the reader may scroll away from it */
    this.revealed = '';
    this.levelNumber = 0;
    /** @type {Map<string, number>} */
    this.flashes = new Map();
    this.frame = 0;
    this.paintedVersion = -1;
    this.#listen();
  }

  #listen() {
    const { scroller } = this;
    scroller.addEventListener('scroll', () => this.draw(), { passive: true });
    scroller.addEventListener('keydown', (event) => this.#onKey(event));
    scroller.addEventListener('focus', () => this.#onFocus());
    scroller.addEventListener('blur', () => this.draw());
    scroller.addEventListener('pointermove', (event) => this.#onPointer(event));
    scroller.addEventListener('pointerleave', () => this.#hideTip());
    scroller.addEventListener('click', (event) => this.#onClick(event));
    scroller.addEventListener('wheel', (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.listener.onZoom(event.deltaY < 0 ? 1 : -1);
    }, { passive: false });
    new ResizeObserver(() => this.scene && this.show(this.scene)).observe(scroller);
  }

  /** @param {Scene} scene */
  show(scene) {
    this.scene = scene;
    const { clientWidth, clientHeight } = this.scroller;
    if (clientWidth === 0) return;
    const width = clientWidth - 2 * PADDING;
    this.levelNumber = scene.zoom ?? fittingLevel(scene.sections, width, clientHeight - 2 * PADDING);
    this.layout = new Layout(scene.sections, LEVELS[this.levelNumber], width);
    this.spacer.style.height = `${this.layout.height + 2 * PADDING}px`;
    this.cursor = null;
    if (this.cursorKey) this.#restoreCursor();
    this.#revealSelection(scene);
    this.#resizeCanvas(clientWidth, clientHeight);
    this.draw();
  }

  /** A link to a card, a node or a pod must show it, also if the map is longer than the screen. @param {Scene} scene */
  #revealSelection({ selected, selectedNode }) {
    const [key = ''] = selected;
    const wanted = key || selectedNode;
    if (wanted === this.revealed) return;
    this.revealed = wanted;
    const position = key ? this.#positionOf(key) : wanted ? this.layout?.findNode(selectedNode) : null;
    if (position) this.#scrollTo(position);
  }

  /** @param {number} width @param {number} height */
  #resizeCanvas(width, height) {
    const scale = devicePixelRatio || 1;
    const { canvas } = this;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const [w, h_] = [Math.round(width * scale), Math.round(height * scale)];
    if (canvas.width !== w || canvas.height !== h_) {
      canvas.width = w;
      canvas.height = h_;
    }
    const context = canvas.getContext('2d');
    if (context && this.scene) this.painter = new Painter(context, scale, { ...this.scene.style, theme: readTheme(this.scroller) });
  }

  /** Outline cards that have changed. @param {Iterable<string>} keys */
  flash(keys) {
    if (matchMedia('(prefers-reduced-motion: reduce)').matches) return;
    const until = performance.now() + FLASH;
    for (const key of keys) this.flashes.set(key, until);
    this.draw();
  }

  draw() {
    if (!this.frame) this.frame = requestAnimationFrame((now) => this.#paint(now));
  }

  /** @param {number} now */
  #paint(now) {
    this.frame = 0;
    const { layout, painter, scene, canvas, scroller } = this;
    if (!layout || !painter || !scene) return;
    const { context, style } = painter;
    const top = scroller.scrollTop;
    const height = scroller.clientHeight;
    context.setTransform(painter.scale, 0, 0, painter.scale, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.translate(PADDING, PADDING - top);
    for (let number = layout.rowAt(top - PADDING); number < layout.rows.length; number += 1) {
      const row = layout.rows[number];
      if (row.top > top + height) break;
      if (row.section) this.#paintHeading(row, painter);
      else this.#paintBlocks(number, painter, scene, now);
    }
    if (this.cursor && document.activeElement === scroller) this.#outline(layout.box(this.cursor), style.theme.accent, 2, 2);
    if (this.paintedVersion !== scene.cluster.version) {
      // For `bench/page.py`. One entry, because the browser keeps all of them.
      this.paintedVersion = scene.cluster.version;
      performance.clearMarks('tessera-painted');
      performance.mark('tessera-painted', { detail: this.paintedVersion });
    }
    for (const [key, until] of this.flashes) if (until < now) this.flashes.delete(key);
    if (this.flashes.size) this.draw();
  }

  /** @param {import('./layout.js').Row} row @param {Painter} painter */
  #paintHeading(row, painter) {
    const { section } = row;
    if (!section || !this.layout) return;
    const { theme } = painter.style;
    const width = this.scroller.clientWidth - 2 * PADDING;
    const right = painter.text(plural(section.cards, 'card'), width, row.top + 17, { colour: theme.muted, size: 12, width: 160, align: 'right' });
    painter.text(section.title, 0, row.top + 17, { colour: theme.text, size: 13, width: width - right - 10, weight: 600 });
    painter.context.fillStyle = theme.line;
    painter.context.fillRect(0, row.top + 25, width, 1);
  }

  /** @param {number} number @param {Painter} painter @param {Scene} scene @param {number} now */
  #paintBlocks(number, painter, scene, now) {
    const layout = /** @type {Layout} */ (this.layout);
    const row = layout.rows[number];
    const { theme } = painter.style;
    for (let block = 0; block < row.blocks.length; block += 1) {
      const { note, cards } = row.blocks[block];
      if (layout.level.label) this.#paintPanel(number, block, painter, scene);
      for (let place = 0; place < cards.length; place += 1) {
        const card = cards[place];
        const box = layout.box({ row: number, block, place });
        painter.cell(card, box, { isDim: scene.isDim(card), showsModel: note === '' });
        const key = this.flashes.size || scene.selected.size ? cardKey(card) : '';
        const until = this.flashes.get(key);
        if (until && until > now) {
          painter.context.globalAlpha = Math.min(1, (until - now) / (FLASH / 2));
          this.#outline(box, theme.accent, 2, 1);
          painter.context.globalAlpha = 1;
        }
        if (key && scene.selected.has(key)) this.#outline(box, theme.text, 2, 2);
      }
    }
  }

  /** The surface of a block, and its name. @param {number} number @param {number} block @param {Painter} painter @param {Scene} scene */
  #paintPanel(number, block, painter, scene) {
    const layout = /** @type {Layout} */ (this.layout);
    const { context, style: { theme } } = painter;
    const { label, note, node, problem, cards } = layout.rows[number].blocks[block];
    const box = layout.blockBox(number, block);
    const { pad, label: labelHeight } = layout.level;
    const isSelected = node === scene.selectedNode;
    context.beginPath();
    context.roundRect(box.x + 0.5, box.y + 0.5, box.width - 1, box.height - 1, 6);
    context.fillStyle = theme.surface;
    context.fill();
    context.strokeStyle = isSelected ? theme.text : problem ? theme.bad : theme.border;
    context.lineWidth = isSelected ? 2 : 1;
    context.stroke();
    const fontSize = labelHeight >= 20 ? 12.5 : 11;
    const width = box.width - 2 * pad;
    const y = box.y + pad + labelHeight - 9;
    const colour = problem ? theme.bad : theme.text;
    const taken = painter.text(problem ? `⚠ ${label}` : label, box.x + pad, y, { colour, size: fontSize, width, weight: 600 });
    const rest = problem && cards.length ? problem : note;
    if (rest && width - taken > 40) painter.text(rest, box.x + pad + taken + 8, y, { colour: problem && cards.length ? theme.bad : theme.muted, size: fontSize - 1, width: width - taken - 8 });
    if (cards.length === 0) {
      const inside = { x: box.x + pad, y: box.y + pad + labelHeight - 2, width, height: layout.level.height + 2 };
      painter.paragraph(problem || 'No cards', inside, { colour: theme.muted, size: fontSize - 1 });
    }
  }

  /** @param {import('./layout.js').Box} box @param {string} colour @param {number} width @param {number} distance */
  #outline(box, colour, width, distance) {
    const context = /** @type {Painter} */ (this.painter).context;
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.strokeRect(box.x - distance, box.y - distance, box.width + 2 * distance, box.height + 2 * distance);
  }

  // -- cursor and keys

  #restoreCursor() {
    this.cursor = this.#positionOf(this.cursorKey);
  }

  /** @param {string} key */
  #positionOf(key) {
    return this.layout?.find(key) ?? null;
  }

  /** @param {import('./layout.js').Position} position */
  #scrollTo(position) {
    const layout = /** @type {Layout} */ (this.layout);
    const box = layout.box(position);
    const { scroller } = this;
    const above = box.y - layout.level.label - layout.level.pad;
    if (above < scroller.scrollTop) scroller.scrollTop = Math.max(0, above);
    const below = box.y + box.height + 2 * PADDING + 4 - scroller.clientHeight;
    if (below > scroller.scrollTop) scroller.scrollTop = below;
    return box;
  }

  /** Put the cursor on a card and show it. @param {import('./layout.js').Position | null} position */
  moveTo(position) {
    const card = position && this.layout?.cardAt(position);
    if (!position || !card || !this.layout) return;
    this.cursor = position;
    this.cursorKey = cardKey(card);
    const box = this.#scrollTo(position);
    this.listener.announce(describe(card, /** @type {Scene} */ (this.scene).cluster));
    this.#showTip(box, card);
    this.draw();
  }

  /** Put the cursor on the next card that is not dimmed. @param {1 | -1} step */
  moveToMatch(step) {
    const { scene, layout } = this;
    if (!scene || !layout) return;
    const accepts = (/** @type {Card} */ card) => !scene.isDim(card);
    this.moveTo(layout.next(this.cursor, step, accepts) ?? layout.next(null, step, accepts));
  }

  #onFocus() {
    if (this.cursor) this.draw();
    else if (this.layout && this.scroller.matches(':focus-visible')) this.moveTo(this.layout.next(null, 1));
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    const { layout } = this;
    if (!layout || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.cursor ?? layout.next(null, 1);
    if (!at) return;
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / (layout.level.height + layout.level.gap)) - 1);
    const far = (/** @type {1 | -1} */ step) => {
      let position = at;
      for (let line = 0; line < page; line += 1) position = layout.vertical(position, step) ?? position;
      return position;
    };
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowRight: () => this.moveTo(layout.next(at, 1)),
      ArrowLeft: () => this.moveTo(layout.next(at, -1)),
      ArrowDown: () => this.moveTo(layout.vertical(at, 1)),
      ArrowUp: () => this.moveTo(layout.vertical(at, -1)),
      PageDown: () => this.moveTo(far(1)),
      PageUp: () => this.moveTo(far(-1)),
      Home: () => this.moveTo(layout.next(null, 1)),
      End: () => this.moveTo(layout.next(null, -1)),
      Enter: () => this.#open(at, event.shiftKey),
      n: () => this.moveToMatch(1),
      N: () => this.moveToMatch(-1),
    };
    if (!(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  }

  // -- pointer

  /** @param {PointerEvent | MouseEvent} event */
  #hit(event) {
    const { scroller } = this;
    const box = scroller.getBoundingClientRect();
    return this.layout?.hit(event.clientX - box.left - PADDING, event.clientY - box.top - PADDING + scroller.scrollTop) ?? null;
  }

  /** @param {PointerEvent} event */
  #onPointer(event) {
    if (event.pointerType === 'touch') return;
    const position = this.#hit(event);
    this.scroller.classList.toggle('over', position !== null);
    const card = position && this.layout?.cardAt(position);
    const block = position && this.layout?.rows[position.row].blocks[position.block];
    if (position && card && this.layout) this.#showTip(this.layout.box(position), card);
    else if (position && block?.problem && this.layout) this.#placeTip(this.layout.blockBox(position.row, position.block), h('strong', null, block.node), h('span', null, block.problem));
    else this.#hideTip();
  }

  /** @param {MouseEvent} event */
  #onClick(event) {
    const position = this.#hit(event);
    if (!position) return;
    const card = this.layout?.cardAt(position);
    if (card) {
      this.cursor = position;
      this.cursorKey = cardKey(card);
    }
    this.#open(position, false);
  }

  /** @param {import('./layout.js').Position} position @param {boolean} wantsNode */
  #open(position, wantsNode) {
    const block = this.layout?.rows[position.row].blocks[position.block];
    const card = block?.cards[position.place];
    if (card && !wantsNode) this.listener.onOpen({ card });
    else if (block) this.listener.onOpen({ node: block.node });
    this.#hideTip();
  }

  /** @param {import('./layout.js').Box} box @param {Card} card */
  #showTip(box, card) {
    const cluster = /** @type {Scene} */ (this.scene).cluster;
    const granted = card.slices.reduce((sum, slice) => sum + slice.memory, 0);
    this.#placeTip(box,
      h('strong', null, `${card.node} · card ${card.index}`),
      h('span', null, [card.model, card.mode, card.state].filter(Boolean).join(' · ')),
      h('span', null, `${sizeOf(granted, card.memory)} granted${card.used === null ? '' : `, ${size(card.used)} used`}`),
      ...card.slices.slice(0, 6).map((slice) => {
        const pod = cluster.pods.get(slice.pod);
        return h('span', { class: 'tip-slice' }, h('span', null, pod ? `${pod.namespace}/${pod.name}` : slice.pod), h('span', { class: 'number' }, mib(slice.memory)));
      }),
      ...(card.slices.length > 6 ? [h('span', null, `and ${count(card.slices.length - 6)} more`)] : []),
    );
  }

  /** @param {import('./layout.js').Box} box @param {...HTMLElement} content */
  #placeTip(box, ...content) {
    const { tip, scroller } = this;
    tip.replaceChildren(...content);
    tip.hidden = false;
    const left = box.x + PADDING + box.width / 2;
    const width = tip.offsetWidth;
    const below = box.y + PADDING - scroller.scrollTop + box.height + 8;
    const fitsBelow = below + tip.offsetHeight < scroller.clientHeight;
    tip.style.left = `${Math.max(4, Math.min(scroller.clientWidth - width - 4, left - width / 2))}px`;
    tip.style.top = `${fitsBelow ? below : Math.max(4, box.y + PADDING - scroller.scrollTop - tip.offsetHeight - 8)}px`;
  }

  #hideTip() {
    this.tip.hidden = true;
  }
}

/** One card in a sentence. @param {Card} card @param {Cluster} cluster */
export function describe(card, cluster) {
  const granted = card.slices.reduce((sum, slice) => sum + slice.memory, 0);
  const names = card.slices.slice(0, 4).map((slice) => cluster.pods.get(slice.pod)?.name ?? slice.pod);
  const holders = card.slices.length ? `${plural(card.slices.length, 'slice')}: ${names.join(', ')}${card.slices.length > 4 ? ' and others' : ''}` : 'free';
  return visible(`${card.node}, card ${card.index}, ${card.model}, ${card.state || 'healthy'}, ${percent(granted, card.memory)} of the memory granted, ${holders}`);
}
