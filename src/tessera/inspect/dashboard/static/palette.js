// @ts-check
/**
 * What slices look like. Eight colours that stay apart for people with protanopia, deuteranopia and tritanopia, and have a
 * contrast of 3:1 to the page, in light and dark; the next eight repeat them with stripes; the rest share one look.
 * Red is left out: it means unhealthy. `tests/ui/test_palette.py` measures all of this.
 */

export const LIGHT = ['#2657b6', '#d57d2e', '#37a191', '#58135e', '#8270b8', '#1e4215', '#8c5e28', '#5d496c'];
export const DARK = ['#588df1', '#d67e30', '#83e7d5', '#954f9a', '#b9a7f4', '#4e7445', '#e9b57f', '#9984a9'];

/** From nothing used to all used. One hue, by lightness, so that it needs no colour vision. */
export const HEAT_LIGHT = ['#d5deea', '#a9c1de', '#7ba0cf', '#4d7cba', '#24579c', '#0b3272'];
export const HEAT_DARK = ['#26303d', '#2f4a6b', '#3a689c', '#4f8acb', '#7fb1ea', '#c2dcfb'];

/**
 * @typedef {{key: string, number: number, colour: string, striped: boolean, ink: string}} Look
 */

/** How many keys have a look of their own. */
export const LOOKS = LIGHT.length * 2;

/** @param {string} colour  #rrggbb */
function luminance(colour) {
  const [r, g, b] = [1, 3, 5].map((at) => {
    const part = parseInt(colour.slice(at, at + 2), 16) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Black or white, whichever can be read on the colour. @param {string} colour */
export function inkOn(colour) {
  return luminance(colour) > 0.18 ? '#0c0e11' : '#ffffff';
}

/** @param {string} text */
function hash(text) {
  let value = 0x811c9dc5;
  for (let at = 0; at < text.length; at += 1) value = Math.imul(value ^ text.charCodeAt(at), 0x01000193) >>> 0;
  return value;
}

/**
 * Looks for the keys with the largest amounts. A key keeps its look for as long as the page is open, and two readers of the
 * same cluster see the same looks: they follow from the names, not from the order of arrival.
 */
export class Looks {
  constructor() {
    /** @type {Map<string, number>} */
    this.numbers = new Map();
  }

  /** @param {Map<string, number>} amounts */
  assign(amounts) {
    const fresh = [...amounts].filter(([key]) => !this.numbers.has(key));
    if (this.numbers.size + fresh.length > LOOKS) {
      for (const key of this.numbers.keys()) if (!amounts.has(key)) this.numbers.delete(key);
    }
    const room = LOOKS - this.numbers.size;
    const chosen = fresh.sort(([a, x], [b, y]) => y - x || (a < b ? -1 : 1)).slice(0, Math.max(0, room)).map(([key]) => key);
    const taken = new Set(this.numbers.values());
    // Plain colours first: up to eight keys need no stripes, and up to four get the colours that differ most.
    const plain = LOOKS / 2;
    const near = amounts.size <= 4 ? 4 : plain;
    for (const key of chosen.sort()) {
      const wish = hash(key);
      const first = Array.from({ length: near }, (_, step) => (wish + step) % near);
      const order = [...first, ...Array.from({ length: plain - near }, (_, step) => near + step)];
      const number = [...order, ...order.map((colour) => plain + colour)].find((free) => !taken.has(free)) ?? 0;
      taken.add(number);
      this.numbers.set(key, number);
    }
  }

  /** @param {string} key @param {boolean} isDark @returns {Look | null}  null: it shares the look of the rest */
  look(key, isDark) {
    const number = this.numbers.get(key);
    if (number === undefined) return null;
    const colours = isDark ? DARK : LIGHT;
    const colour = colours[number % colours.length];
    return { key, number, colour, striped: number >= colours.length, ink: inkOn(colour) };
  }
}

/** @param {number} share  0 to 1 @param {boolean} isDark */
export function heat(share, isDark) {
  const scale = isDark ? HEAT_DARK : HEAT_LIGHT;
  return scale[Math.min(scale.length - 1, Math.floor(Math.max(0, share) * scale.length))];
}
