// @ts-check
/**
 * Draws cells on a canvas, but for the smallest (`Mosaic`). A cell is a card: its width is the card's memory, each slice as wide as its grant; free memory is
 * empty. Larger cells add a line for the cores, what is used of each slice, and names.
 */

import { shortModel, size, sizeOf } from './format.js';
import { visible } from './dom.js';
import { heat, inkOn } from './palette.js';

/**
 * @typedef {import('./cluster.js').Card} Card
 * @typedef {import('./cluster.js').Slice} Slice
 * @typedef {import('./palette.js').Look} Look
 * @typedef {import('./layout.js').Box} Box
 * @typedef {{free: string, line: string, text: string, muted: string, bad: string, rest: string, surface: string, border: string, accent: string}} Theme
 * @typedef {{theme: Theme, isDark: boolean, byUse: boolean, lookOf: (slice: Slice) => Look | null, nameOf: (slice: Slice) => string,
 *   isHeld: (slice: Slice) => boolean, colourOfNamespace: (namespace: string) => string | null}} Style
 */

const FONT = 'Inter, system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';
/** Cells at least this wide have names in them. */
const NAMED = 100;
/** Cells at least this wide have a line for the cores, and show what is used. */
const DETAILED = 50;

/** @param {HTMLElement} element @returns {Theme} */
export function readTheme(element) {
  const style = getComputedStyle(element);
  const read = (/** @type {string} */ name) => style.getPropertyValue(`--${name}`).trim();
  return {
    free: read('cell'), line: read('cell-line'), text: read('text'), muted: read('muted'), bad: read('bad'), rest: read('rest'),
    surface: read('surface'), border: read('line'), accent: read('accent'),
  };
}

export class Painter {
  /** @param {CanvasRenderingContext2D} context @param {number} scale  device pixels per CSS pixel @param {Style} style */
  constructor(context, scale, style) {
    this.context = context;
    this.scale = scale;
    this.style = style;
    /** @type {Map<string, CanvasPattern | string>} */
    this.fills = new Map();
    /** @type {Map<string, {short: string, width: number}>} */
    this.shortened = new Map();
  }

  /** Diagonal lines over a colour. @param {string} base @param {string} line @param {number} width @returns {CanvasPattern | string} */
  hatch(base, line, width) {
    const key = `${base} ${line} ${width}`;
    const known = this.fills.get(key);
    if (known) return known;
    const side = 6 * this.scale;
    const tile = new OffscreenCanvas(side, side);
    const context = tile.getContext('2d');
    if (!context) return base;
    context.fillStyle = base;
    context.fillRect(0, 0, side, side);
    context.strokeStyle = line;
    context.lineWidth = width * this.scale;
    for (const shift of [-side, 0, side]) {
      context.beginPath();
      context.moveTo(shift - 1, side + 1);
      context.lineTo(shift + side + 1, -1);
      context.stroke();
    }
    const pattern = this.context.createPattern(tile, 'repeat');
    pattern?.setTransform(new DOMMatrix().scale(1 / this.scale));
    const fill = pattern ?? base;
    this.fills.set(key, fill);
    return fill;
  }

  /** The colour without stripes or hatching. @param {Slice} slice */
  colourOf(slice) {
    const { isDark, byUse, theme } = this.style;
    if (!byUse) return this.style.lookOf(slice)?.colour ?? theme.rest;
    return slice.utilization === null && slice.used === null ? theme.muted : heat(shareUsed(slice), isDark);
  }

  /** @param {Slice} slice @returns {{fill: CanvasPattern | string, ink: string}} */
  fillOf(slice) {
    const { isDark, byUse, theme } = this.style;
    if (byUse) {
      if (slice.utilization === null && slice.used === null) return { fill: this.hatch(theme.free, theme.muted, 1), ink: theme.text };
      const colour = heat(shareUsed(slice), isDark);
      return { fill: colour, ink: inkOn(colour) };
    }
    const look = this.style.lookOf(slice);
    // Held for a member of a gang that has not come: no pod has it yet.
    if (this.style.isHeld(slice)) return { fill: this.hatch(theme.free, `${look?.colour ?? theme.rest}66`, 2), ink: theme.text };
    if (!look) return { fill: theme.rest, ink: inkOn(theme.rest) };
    return { fill: look.striped ? this.hatch(look.colour, isDark ? '#0008' : '#fff7', 2) : look.colour, ink: look.ink };
  }

  /** @param {Card} card @param {Box} box @param {{isDim: boolean, showsModel: boolean}} options */
  cell(card, box, { isDim, showsModel }) {
    const { context } = this;
    if (isDim) context.globalAlpha = 0.16;
    if (box.width >= NAMED) this.#namedCell(card, box, showsModel);
    else this.#plainCell(card, box);
    if (isDim) context.globalAlpha = 1;
  }

  /** @param {Card} card @param {Box} box */
  #plainCell(card, box) {
    const isDetailed = box.width >= DETAILED;
    const cores = isDetailed ? 4 : 0;
    const memory = { ...box, height: box.height - cores - (cores ? 1 : 0) };
    this.#memory(card, memory, isDetailed ? 2 : 0);
    if (cores) this.#cores(card, { ...box, y: box.y + box.height - cores, height: cores });
    this.#mark(card, box);
  }

  /** @param {Card} card @param {Box} box @param {boolean} showsModel */
  #namedCell(card, box, showsModel) {
    const isLarge = box.height >= 70;
    const head = isLarge ? 18 : 13;
    const { theme } = this.style;
    const right = card.state ? card.state.split(':')[0] : card.mode && card.mode !== 'hami-core' ? card.mode : '';
    const isBad = card.state.startsWith('unhealthy');
    const fontSize = isLarge ? 11 : 10;
    const rightWidth = right ? this.text(right, box.x + box.width, box.y + head - 4, { colour: isBad ? theme.bad : card.state ? theme.text : theme.muted, size: fontSize, align: 'right', width: box.width * 0.7 }) : 0;
    const name = showsModel ? `${card.index}  ${shortModel(card.model)}` : String(card.index);
    this.text(name, box.x, box.y + head - 4, { colour: theme.muted, size: fontSize, width: box.width - rightWidth - 6 });
    const foot = isLarge ? 17 : 0;
    const strip = isLarge ? 5 : 4;
    const memory = { x: box.x, y: box.y + head, width: box.width, height: box.height - head - foot - strip - 2 };
    this.#memory(card, memory, 3, true);
    this.#cores(card, { ...memory, y: memory.y + memory.height + 2, height: strip });
    if (isLarge) {
      const granted = card.slices.reduce((sum, slice) => sum + slice.memory, 0);
      const cores = card.slices.reduce((sum, slice) => sum + slice.cores, 0);
      const y = box.y + box.height - 3;
      const taken = granted ? this.text(`${card.cores ? Math.round((100 * cores) / card.cores) : 0} % cores`, box.x + box.width, y, { colour: theme.muted, size: 11, align: 'right', width: box.width / 2 }) : 0;
      this.text(granted ? sizeOf(granted, card.memory) : `${size(card.memory)} free`, box.x, y, { colour: granted ? theme.text : theme.muted, size: 11, width: box.width - taken - 8 });
    }
    this.#mark(card, memory);
  }

  /** @param {Card} card @param {Box} box @param {number} strip  the height of the line that shows what is used @param {boolean} [isNamed] */
  #memory(card, box, strip, isNamed = false) {
    const { context } = this;
    const { theme } = this.style;
    context.fillStyle = card.state === '' ? theme.free : card.state.startsWith('unhealthy') ? this.hatch(theme.free, theme.bad, 2) : this.hatch(theme.free, theme.muted, 1.5);
    context.fillRect(box.x, box.y, box.width, box.height);
    const total = Math.max(card.memory, card.slices.reduce((sum, slice) => sum + slice.memory, 0));
    let x = box.x;
    for (const slice of card.slices) {
      const share = total > 0 ? slice.memory / total : 1 / Math.max(card.slots, card.slices.length);
      const width = share * box.width;
      const gap = x + width < box.x + box.width - 0.5 ? 1 : 0;
      const { fill, ink } = this.fillOf(slice);
      context.fillStyle = fill;
      context.fillRect(x, box.y, Math.max(width - gap, 1), box.height);
      if (strip && slice.used !== null && slice.memory > 0 && width > 6) {
        const inset = box.height > 14 ? 3 : 1;
        const line = { x: x + inset, y: box.y + box.height - strip - inset, width: width - gap - 2 * inset };
        context.fillStyle = ink === '#ffffff' ? '#ffffff4d' : '#0000003d';
        context.fillRect(line.x, line.y, line.width, strip);
        context.fillStyle = ink;
        context.fillRect(line.x, line.y, Math.max(0, Math.min(1, slice.used / slice.memory)) * line.width, strip);
      }
      if (isNamed && width >= 26) {
        const fontSize = box.height >= 26 ? 11.5 : 10;
        this.text(this.style.nameOf(slice), x + 5, box.y + (box.height - 2 * strip) / 2 + fontSize * 0.36, { colour: ink, size: fontSize, width: width - 10 });
      }
      x += width;
    }
    this.#claims(card, box, total);
  }

  /** What nominated pods claim: a bracket over what their victims still hold. @param {Card} card @param {Box} box @param {number} total */
  #claims(card, box, total) {
    const { context } = this;
    const { theme } = this.style;
    let x = box.x;
    for (const claim of card.claims) {
      const width = Math.min(Math.max((total > 0 ? claim.memory / total : 1) * box.width, 2), box.x + box.width - x);
      const line = box.width >= DETAILED ? 3 : Math.max(1, Math.min(2, box.height / 5));
      context.fillStyle = theme.surface;
      context.fillRect(x, box.y, width, line + 1);
      context.fillStyle = this.style.colourOfNamespace(claim.namespace) ?? theme.accent;
      context.fillRect(x, box.y, width, line);
      context.strokeStyle = theme.accent;
      context.lineWidth = 1;
      context.setLineDash([3, 2]);
      context.strokeRect(x + 0.5, box.y + 0.5, Math.max(width - 1, 1), box.height - 1);
      context.setLineDash([]);
      x += width;
    }
  }

  /** @param {Card} card @param {Box} box */
  #cores(card, box) {
    const { context } = this;
    context.fillStyle = this.style.theme.free;
    context.fillRect(box.x, box.y, box.width, box.height);
    let x = box.x;
    for (const slice of card.slices) {
      const width = card.cores > 0 ? (Math.min(slice.cores, card.cores) / card.cores) * box.width : 0;
      context.fillStyle = this.fillOf(slice).fill;
      context.fillRect(x, box.y, Math.max(0, width - (width > 3 ? 1 : 0)), box.height);
      x += width;
    }
  }

  /** What must be seen whatever holds the card. @param {Card} card @param {Box} box */
  #mark(card, box) {
    const { context } = this;
    const { theme } = this.style;
    if (card.state.startsWith('unhealthy')) {
      const line = Math.min(2, Math.max(1, box.height / 6));
      context.strokeStyle = theme.bad;
      context.lineWidth = line;
      context.strokeRect(box.x + line / 2, box.y + line / 2, box.width - line, box.height - line);
      if (box.width < DETAILED) {
        // too small for hatching
        context.beginPath();
        context.moveTo(box.x, box.y);
        context.lineTo(box.x + box.width, box.y + box.height);
        context.moveTo(box.x + box.width, box.y);
        context.lineTo(box.x, box.y + box.height);
        context.stroke();
      }
    } else if (card.state !== '') {
      context.strokeStyle = theme.muted;
      context.lineWidth = 1;
      context.strokeRect(box.x + 0.5, box.y + 0.5, box.width - 1, box.height - 1);
    }
    if (card.mode === 'mig' && box.width < NAMED) {
      // a corner cut off: the card is divided by its hardware
      const side = Math.min(7, box.height / 2.2);
      context.fillStyle = theme.text;
      context.beginPath();
      context.moveTo(box.x + box.width, box.y);
      context.lineTo(box.x + box.width - side, box.y);
      context.lineTo(box.x + box.width, box.y + side);
      context.fill();
    }
  }

  /**
   * @param {string} text @param {number} x @param {number} y
   * @param {{colour: string, size: number, width: number, align?: CanvasTextAlign, weight?: number}} options
   * @returns {number}  how wide it became
   */
  text(text, x, y, { colour, size: fontSize, width, align = 'left', weight = 400 }) {
    const { context } = this;
    context.font = `${weight} ${fontSize}px ${FONT}`;
    context.textAlign = align;
    context.direction = 'ltr';
    context.fillStyle = colour;
    const { short, width: taken } = this.#shorten(text, width, `${weight} ${fontSize}`);
    if (short) context.fillText(short, x, y);
    return taken;
  }

  /**
   * Text in as many lines as it has room for. @param {string} text @param {Box} box @param {{colour: string, size: number}} options
   */
  paragraph(text, box, { colour, size: fontSize }) {
    const { context } = this;
    context.font = `400 ${fontSize}px ${FONT}`;
    const lineHeight = Math.round(fontSize * 1.4);
    const most = Math.max(1, Math.floor(box.height / lineHeight));
    const lines = [''];
    for (const word of visible(text).slice(0, 400).split(' ')) {
      const longer = lines[lines.length - 1] ? `${lines[lines.length - 1]} ${word}` : word;
      if (lines.length < most && lines[lines.length - 1] && context.measureText(longer).width > box.width) lines.push(word);
      else lines[lines.length - 1] = longer;
    }
    const top = box.y + (box.height - lines.length * lineHeight) / 2;
    for (const [at, line] of lines.entries()) this.text(line, box.x, top + at * lineHeight + fontSize, { colour, size: fontSize, width: box.width });
  }

  /** @param {string} text @param {number} width @param {string} font */
  #shorten(text, width, font) {
    const key = `${font} ${Math.round(width)} ${text}`;
    const known = this.shortened.get(key);
    if (known !== undefined) return known;
    let short = visible(text).slice(0, 200);
    if (this.context.measureText(short).width > width) {
      let low = 0;
      let high = short.length;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (this.context.measureText(`${short.slice(0, middle)}…`).width <= width) low = middle;
        else high = middle - 1;
      }
      short = low > 1 ? `${[...short.slice(0, low)].join('')}…` : '';
    }
    if (this.shortened.size > 20_000) this.shortened.clear();
    const found = { short, width: short ? this.context.measureText(short).width : 0 };
    this.shortened.set(key, found);
    return found;
  }
}

/** @param {Slice} slice */
export function shareUsed(slice) {
  if (slice.used !== null && slice.memory > 0) return slice.used / slice.memory;
  return (slice.utilization ?? 0) / 100;
}
