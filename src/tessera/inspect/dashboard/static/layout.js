// @ts-check
/**
 * Where the cells of the map are. Blocks flow in columns below their section's heading; only rows that are visible are ever
 * looked at, so that the cost of a frame follows the size of the screen, not of the cluster.
 */

import { cardKey } from './cluster.js';

/**
 * @typedef {import('./groups.js').Block} Block
 * @typedef {import('./groups.js').Section} Section
 * @typedef {{width: number, height: number, gap: number, blockGap: number, label: number, pad: number}} Level
 *   of a cell in CSS pixels; `label`: the height of a block's name, 0 for none; `pad`: between a block's edge and its cells
 * @typedef {{top: number, height: number, section: Section | null, blocks: Block[], lefts: number[]}} Row  a heading, or blocks side by side
 * @typedef {{row: number, block: number, place: number}} Position
 * @typedef {{x: number, y: number, width: number, height: number}} Box
 */

/** @type {Level[]} */
export const LEVELS = [
  { width: 3, height: 3, gap: 1, blockGap: 3, label: 0, pad: 0 },
  { width: 6, height: 5, gap: 1, blockGap: 4, label: 0, pad: 0 },
  { width: 12, height: 9, gap: 1, blockGap: 7, label: 0, pad: 0 },
  { width: 24, height: 15, gap: 2, blockGap: 6, label: 15, pad: 6 },
  { width: 56, height: 26, gap: 3, blockGap: 8, label: 18, pad: 8 },
  { width: 116, height: 50, gap: 6, blockGap: 10, label: 22, pad: 10 },
  { width: 158, height: 76, gap: 8, blockGap: 12, label: 24, pad: 12 },
  { width: 216, height: 92, gap: 9, blockGap: 14, label: 26, pad: 14 },
];
const HEADING = 34;
/** A block with fewer cards is as wide as its name needs; with larger letters, as its name and its model need. */
const LEAST_BLOCK = 84;
const LEAST_NAMED_BLOCK = 190;
/** A block without cards has its problem in it, and room for it. */
const PROBLEM_BLOCK = 260;
/** Cards that stand beside each other; most nodes have eight. */
const COLUMNS = [8, 4, 2, 1];

export class Layout {
  /** @param {Section[]} sections @param {Level} level @param {number} width */
  constructor(sections, level, width) {
    this.level = level;
    /** @type {Row[]} */
    this.rows = [];
    const largest = sections.reduce((most, section) => section.blocks.reduce((cards, block) => Math.max(cards, block.cards.length), most), 1);
    const fitting = (/** @type {number} */ columns) => columns * (level.width + level.gap) - level.gap + 2 * level.pad <= width;
    // Small cells stand in two rows, so that a node is a compact tile.
    const widest = level.label === 0 ? 4 : 8;
    this.columns = Math.min(COLUMNS.find((columns) => columns <= widest && fitting(columns)) ?? 1, Math.max(largest, 1));
    let top = 0;
    for (const section of sections) {
      if (section.title) {
        this.rows.push({ top, height: HEADING, section, blocks: [], lefts: [] });
        top += HEADING;
      }
      /** @type {Row | null} */
      let row = null;
      let left = 0;
      for (const block of section.blocks) {
        const blockWidth = this.blockWidth(block);
        if (!row || left + blockWidth > width) {
          row = { top: row ? row.top + row.height : top, height: 0, section: null, blocks: [], lefts: [] };
          this.rows.push(row);
          left = 0;
        }
        row.blocks.push(block);
        row.lefts.push(left);
        const lines = Math.max(1, Math.ceil(block.cards.length / this.columns));
        row.height = Math.max(row.height, this.#blockHeight(lines) + level.blockGap);
        left += blockWidth + level.blockGap;
      }
      top = row ? row.top + row.height + (section.title ? level.blockGap / 2 : 0) : top;
    }
    this.height = top;
  }

  /** @param {Block} block */
  blockWidth(block) {
    const { width, gap, label, pad } = this.level;
    // Without names, all tiles are equally wide: a grid is easier to read than a flow.
    const columns = label ? Math.max(1, Math.min(this.columns, block.cards.length)) : this.columns;
    const least = label ? (block.problem && block.cards.length === 0 ? PROBLEM_BLOCK : label >= 22 ? LEAST_NAMED_BLOCK : LEAST_BLOCK) : 0;
    return Math.max(columns * (width + gap) - gap, least) + 2 * pad;
  }

  /** @param {number} lines */
  #blockHeight(lines) {
    const { height, gap, label, pad } = this.level;
    return label + lines * (height + gap) - gap + 2 * pad;
  }

  /** Around the name and the cells of a block. @param {number} row @param {number} block @returns {Box} */
  blockBox(row, block) {
    const { top, lefts, blocks } = this.rows[row];
    const lines = Math.max(1, Math.ceil(blocks[block].cards.length / this.columns));
    return { x: lefts[block], y: top, width: this.blockWidth(blocks[block]), height: this.#blockHeight(lines) };
  }

  /** The first row that ends below `y`. @param {number} y */
  rowAt(y) {
    let low = 0;
    let high = this.rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.rows[middle].top + this.rows[middle].height <= y) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** @param {Position} position @returns {Box} */
  box({ row, block, place }) {
    const { width, height, gap, label, pad } = this.level;
    return {
      x: this.rows[row].lefts[block] + pad + (place % this.columns) * (width + gap),
      y: this.rows[row].top + pad + label + Math.floor(place / this.columns) * (height + gap),
      width,
      height,
    };
  }

  /** @param {Position} position */
  cardAt({ row, block, place }) {
    return this.rows[row]?.blocks[block]?.cards[place] ?? null;
  }

  /** The position below a point; `place` is -1 on a block's name. @param {number} x @param {number} y @returns {Position | null} */
  hit(x, y) {
    const row = this.rowAt(y);
    if (y < 0 || row >= this.rows.length) return null;
    const { width, height, gap, label, pad } = this.level;
    const { top, blocks, lefts } = this.rows[row];
    const block = lefts.findLastIndex((left) => left <= x);
    if (block < 0) return null;
    const box = this.blockBox(row, block);
    if (x > box.x + box.width || y > box.y + box.height) return null;
    // The name and the edge of a block belong to its node.
    if (label && y < top + pad + label) return { row, block, place: -1 };
    const column = Math.floor((x - lefts[block] - pad) / (width + gap));
    const place = Math.floor((y - top - pad - label) / (height + gap)) * this.columns + column;
    const isCard = column >= 0 && column < this.columns && place >= 0 && place < blocks[block].cards.length;
    return isCard ? { row, block, place } : label ? { row, block, place: -1 } : null;
  }

  /** @param {string} node @returns {Position | null} */
  findNode(node) {
    for (let row = 0; row < this.rows.length; row += 1) {
      const block = this.rows[row].blocks.findIndex((one) => one.node === node);
      if (block >= 0) return { row, block, place: 0 };
    }
    return null;
  }

  /** @param {string} key  of a card @returns {Position | null} */
  find(key) {
    for (let row = 0; row < this.rows.length; row += 1) {
      const { blocks } = this.rows[row];
      for (let block = 0; block < blocks.length; block += 1) {
        if (!key.startsWith(blocks[block].node)) continue;
        const place = blocks[block].cards.findIndex((card) => cardKey(card) === key);
        if (place >= 0) return { row, block, place };
      }
    }
    return null;
  }

  /** The next position in reading order that `accepts` its card. @param {Position | null} from @param {1 | -1} step @param {(card: import('./cluster.js').Card) => boolean} [accepts] @returns {Position | null} */
  next(from, step, accepts = () => true) {
    let { row, block, place } = from ?? { row: step > 0 ? 0 : this.rows.length - 1, block: step > 0 ? 0 : Infinity, place: step > 0 ? -1 : Infinity };
    for (; row >= 0 && row < this.rows.length; row += step, block = step > 0 ? 0 : Infinity, place = step > 0 ? -1 : Infinity) {
      const { blocks } = this.rows[row];
      for (block = Math.min(block, blocks.length - 1); block >= 0 && block < blocks.length; block += step, place = step > 0 ? -1 : Infinity) {
        const { cards } = blocks[block];
        for (place = Math.min(place, cards.length) + step; place >= 0 && place < cards.length; place += step) {
          if (accepts(cards[place])) return { row, block, place };
        }
      }
    }
    return null;
  }

  /** The position above or below. @param {Position} from @param {1 | -1} step @returns {Position | null} */
  vertical(from, step) {
    const inside = { ...from, place: from.place + step * this.columns };
    if (inside.place >= 0 && this.cardAt(inside)) return inside;
    const { x } = this.box(from);
    for (let row = from.row + step; row >= 0 && row < this.rows.length; row += step) {
      const { blocks, lefts } = this.rows[row];
      for (let block = lefts.findLastIndex((left) => left <= x); block >= 0; block -= 1) {
        const { length } = blocks[block].cards;
        if (length === 0) continue;
        const column = Math.min(this.columns - 1, Math.max(0, Math.round((x - lefts[block] - this.level.pad) / (this.level.width + this.level.gap))));
        const line = step > 0 ? 0 : Math.floor((length - 1) / this.columns);
        return { row, block, place: Math.min(line * this.columns + column, length - 1) };
      }
    }
    return null;
  }
}

/**
 * The largest level at which everything is visible without scrolling, or the smallest.
 * @param {Section[]} sections @param {number} width @param {number} height
 */
export function fittingLevel(sections, width, height) {
  const cards = sections.reduce((sum, section) => sum + section.cards, 0);
  for (let number = LEVELS.length - 1; number > 0; number -= 1) {
    const { width: w, height: h } = LEVELS[number];
    if (cards * w * h > width * height) continue;
    if (new Layout(sections, LEVELS[number], width).height <= height + LEVELS[number].blockGap) return number;
  }
  return 0;
}
