// @ts-check
/**
 * Draws cells that are too small for details, tens of thousands at once, pixel by pixel: a canvas takes ten times as long
 * for as many rectangles. A cell has the colour of its largest slice, as high as what is granted.
 */

/**
 * @typedef {import('./cluster.js').Card} Card
 * @typedef {import('./cluster.js').Slice} Slice
 * @typedef {import('./layout.js').Box} Box
 * @typedef {import('./painter.js').Painter} Painter
 */

/** Cells that are narrower than this, in CSS pixels, are drawn here. */
export const DIVIDED = 12;
const OPAQUE = 255;
/** of cells that do not match */
const DIM = 41;

export class Mosaic {
  /** @param {Painter} painter @param {number} width @param {number} height  in device pixels */
  constructor(painter, width, height) {
    this.painter = painter;
    this.image = painter.context.createImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    /** @type {Map<string, number>} */
    this.values = new Map();
  }

  /** @param {Card} card @param {Box} box  on the canvas, in CSS pixels @param {boolean} isDim */
  cell(card, box, isDim) {
    const { theme } = this.painter.style;
    const opacity = isDim ? DIM : OPAQUE;
    let granted = 0;
    /** @type {Slice | null} */
    let largest = null;
    for (const slice of card.slices) {
      granted += slice.memory;
      if (!largest || slice.memory > largest.memory) largest = slice;
    }
    const isBad = card.state.startsWith('unhealthy');
    const share = card.memory > 0 ? Math.min(1, granted / card.memory) : 1;
    const filled = largest ? Math.max(1, Math.round(share * box.height)) : 0;
    this.#fill(box.x, box.y, box.width, box.height, this.#value(isBad ? theme.bad : theme.free, opacity));
    if (largest && !isBad) this.#fill(box.x, box.y + box.height - filled, box.width, filled, this.#value(this.painter.colourOf(largest), opacity));
    // A line on top: the card takes no pods.
    if (card.state !== '' && !isBad) this.#fill(box.x, box.y, box.width, 1, this.#value(theme.muted, opacity));
  }

  show() {
    this.painter.context.putImageData(this.image, 0, 0);
  }

  /** A colour as a pixel. @param {string} colour  #rrggbb @param {number} opacity */
  #value(colour, opacity) {
    const key = opacity === OPAQUE ? colour : `${colour} dim`;
    let value = this.values.get(key);
    if (value === undefined) {
      const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
      // in the order of bytes in memory, which is that of the image
      [value] = new Uint32Array(new Uint8Array([red, green, blue, opacity]).buffer);
      this.values.set(key, value);
    }
    return value;
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height @param {number} value */
  #fill(x, y, width, height, value) {
    const { scale } = this.painter;
    const [left, right] = [Math.max(0, Math.round(x * scale)), Math.min(this.image.width, Math.round((x + width) * scale))];
    const bottom = Math.min(this.image.height, Math.round((y + height) * scale));
    for (let line = Math.max(0, Math.round(y * scale)); line < bottom; line += 1) {
      this.pixels.fill(value, line * this.image.width + left, line * this.image.width + right);
    }
  }
}
