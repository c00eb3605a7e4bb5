// @ts-check
/**
 * Where the reader is, as the fragment of the address: a link to it shows a colleague the same. The fragment is not sent
 * to the server, so that proxies do not log filters.
 */

/**
 * @typedef {{
 *   view: string, group: string, colour: string, filter: string, find: boolean, zoom: string, table: boolean,
 *   node: string, card: string, pod: string, time: number | null, sort: string,
 * }} Place
 */

export const VIEWS = ['cards', 'waiting', 'what-if', 'time', 'totals'];
export const GROUPS = ['node', 'model', 'nvlink'];
export const COLOURS = ['namespace', 'owner', 'use'];

/** @param {string | null} value @param {string[]} known */
const oneOf = (value, known) => (value !== null && known.includes(value) ? value : known[0]);

/** @param {string} [fragment] @returns {Place} */
export function readPlace(fragment = location.hash) {
  const query = new URLSearchParams(fragment.replace(/^#/, ''));
  const time = Number(query.get('time') ?? NaN);
  return {
    view: oneOf(query.get('view'), VIEWS),
    group: oneOf(query.get('group'), GROUPS),
    colour: oneOf(query.get('colour'), COLOURS),
    filter: query.get('filter') ?? '',
    find: query.get('find') === '1',
    zoom: query.get('zoom') ?? '',
    table: query.get('table') === '1',
    node: query.get('node') ?? '',
    card: query.get('card') ?? '',
    pod: query.get('pod') ?? '',
    time: Number.isFinite(time) ? time : null,
    sort: query.get('sort') ?? '',
  };
}

/** @param {Place} place @returns {string} */
export function linkTo(place) {
  const query = new URLSearchParams();
  if (place.view !== VIEWS[0]) query.set('view', place.view);
  if (place.group !== GROUPS[0]) query.set('group', place.group);
  if (place.colour !== COLOURS[0]) query.set('colour', place.colour);
  for (const name of /** @type {const} */ (['filter', 'zoom', 'sort', 'node', 'card', 'pod'])) if (place[name]) query.set(name, place[name]);
  for (const name of /** @type {const} */ (['find', 'table'])) if (place[name]) query.set(name, '1');
  if (place.time !== null) query.set('time', String(Math.round(place.time * 1000) / 1000));
  return `#${query}`;
}

/**
 * Go to a place, or (`replace`) correct the current one, which adds no step to the browser's history.
 * @param {Partial<Place>} changes
 * @param {{replace?: boolean}} [options]
 */
export function go(changes, { replace = false } = {}) {
  const link = linkTo({ ...readPlace(), ...changes });
  if (link === linkTo(readPlace())) return;
  history[replace ? 'replaceState' : 'pushState'](null, '', link);
  dispatchEvent(new Event('placechange'));
}

/** What no selection looks like. */
export const NOTHING = { node: '', card: '', pod: '' };
