// @ts-check
/** Numbers, amounts and times as text. Memory is in MiB, as in manifests; time in seconds since 1970. */

/** @param {number} value */
export function count(value) {
  return Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, '\u202f');
}

/** @param {number} value  MiB */
export function mib(value) {
  return `${count(value)} MiB`;
}

/** @param {number} value  MiB, rounded to three digits of a unit that suits it */
export function size(value) {
  for (const [unit, factor] of /** @type {[string, number][]} */ ([['PiB', 2 ** 30], ['TiB', 2 ** 20], ['GiB', 2 ** 10]])) {
    if (value >= factor) {
      const scaled = value / factor;
      return `${scaled >= 100 ? count(scaled) : scaled.toFixed(scaled >= 10 ? 0 : 1)} ${unit}`;
    }
  }
  return mib(value);
}

/** A part of a whole, both in MiB, with the unit that suits the whole. @param {number} part @param {number} whole */
export function sizeOf(part, whole) {
  const [number, unit] = size(whole).split(' ');
  const factor = { PiB: 2 ** 30, TiB: 2 ** 20, GiB: 2 ** 10 }[unit] ?? 1;
  const scaled = part / factor;
  return `${number.includes('.') ? scaled.toFixed(1) : scaled > 0 && scaled < 9.95 ? Number(scaled.toFixed(1)) : count(scaled)} of ${number} ${unit}`;
}

/** A number of cards, of which a share may be taken. @param {number} cards */
export function cardCount(cards) {
  return Number.isInteger(cards) || cards >= 100 ? count(cards) : cards.toFixed(1);
}

/** Text about cards that are named by their index already. @param {string} text */
export function withoutUuids(text) {
  return text.replace(/ \((?:[A-Z]+-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\)/gi, '');
}

/** A model's name without what all cards of its maker share. @param {string} model */
export function shortModel(model) {
  return model.replace(/^NVIDIA[ -]/i, '').replace(/^(Tesla|GeForce) /i, '').replace(/-/g, ' ').replace(/ (HBM\d\w*|PCIe|SXM\d)$/i, '');
}

/** @param {number} part @param {number} whole */
export function percent(part, whole) {
  if (!(whole > 0)) return '–';
  const share = (100 * part) / whole;
  return `${share > 0 && share < 10 ? share.toFixed(1) : Math.round(share)} %`;
}

/** @param {number} seconds */
export function duration(seconds) {
  if (seconds > 0 && seconds < 9.95) return `${Number(seconds.toFixed(1))} s`;
  const s = Math.max(0, Math.round(seconds));
  const join = (/** @type {number} */ large, /** @type {string} */ unit, /** @type {number} */ small, /** @type {string} */ rest) => `${large} ${unit}${small ? ` ${small} ${rest}` : ''}`;
  if (s < 60) return `${s} s`;
  // Seconds matter to the reader for ten minutes at most.
  if (s < 3600) return join(Math.floor(s / 60), 'min', s < 600 ? s % 60 : 0, 's');
  if (s < 86400) return join(Math.floor(s / 3600), 'h', Math.floor((s % 3600) / 60), 'min');
  return join(Math.floor(s / 86400), 'd', Math.floor((s % 86400) / 3600), 'h');
}

/** @param {number} value */
const two = (value) => String(value).padStart(2, '0');

/** @param {number} time */
export function clock(time) {
  const date = new Date(time * 1000);
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** @param {number} time */
export function day(time) {
  const date = new Date(time * 1000);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

/** @param {number} time @param {number} [now]  the day is left out if it is today */
export function moment(time, now = Date.now() / 1000) {
  return day(time) === day(now) ? clock(time) : `${day(time)} ${clock(time)}`;
}

/** @param {number} number @param {string} one @param {string} [many] */
export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

const byName = new Intl.Collator('en', { numeric: true });

/** Orders names as people do: node-2 before node-10. @param {string} a @param {string} b */
export function compareNames(a, b) {
  return byName.compare(a, b);
}
