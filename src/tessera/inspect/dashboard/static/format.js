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

/** @param {number} part @param {number} whole */
export function percent(part, whole) {
  if (!(whole > 0)) return '–';
  const share = (100 * part) / whole;
  return `${share > 0 && share < 10 ? share.toFixed(1) : Math.round(share)} %`;
}

/** @param {number} seconds */
export function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
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
