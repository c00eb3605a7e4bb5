// @ts-check
/** What if: where a manifest would go, how many of it fit, and how much of the usual shapes is left. */

import { get, post } from '../api.js';
import { bar, emptyState } from '../controls.js';
import { nodeLink } from '../details.js';
import { fill, h } from '../dom.js';
import { count, plural } from '../format.js';

const SAMPLE = `apiVersion: v1
kind: Pod
metadata:
  name: trial
spec:
  containers:
    - name: main
      image: my-image
      resources:
        limits:
          nvidia.com/gpu: 1
          nvidia.com/gpumem: 20000
          nvidia.com/gpucores: 30
`;

/** @param {import('../app.js').App} app */
export function createWhatIfView(app) {
  const manifest = h('textarea', { id: 'manifest', class: 'manifest', rows: '16', spellcheck: 'false', autocomplete: 'off', 'aria-describedby': 'manifest-help',
    onkeydown: (/** @type {KeyboardEvent} */ event) => { if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) ask(); } });
  manifest.value = SAMPLE;
  const button = h('button', { type: 'button', class: 'primary', onclick: () => ask() }, 'Try it');
  const result = h('div', { class: 'result', role: 'region', 'aria-live': 'polite', 'aria-label': 'Result' });
  const shapes = h('div', { class: 'shapes' });
  const element = h('section', { class: 'view scroll what-if', 'aria-label': 'What if' },
    h('div', { class: 'what-if-form' },
      h('h2', null, h('label', { for: 'manifest' }, 'Manifest')),
      h('p', { id: 'manifest-help', class: 'muted' }, 'A pod, or a workload that makes pods; a Job or JobSet with a gang is tried as a whole. Nothing is created.'),
      manifest, h('div', { class: 'buttons' }, button, h('span', { class: 'muted' }, h('kbd', null, 'Ctrl'), ' ', h('kbd', null, 'Enter'))), result),
    h('div', null, h('h2', null, 'Room for the usual shapes'), h('p', { class: 'muted' }, 'How many more of each would fit now, if nothing else came.'), shapes));
  /** @type {AbortController | null} */
  let request = null;
  let askedFor = -1;

  async function ask() {
    request?.abort();
    const mine = new AbortController();
    request = mine;
    fill(result, h('p', { class: 'muted' }, 'Trying …'));
    try {
      const found = await post('whatif', manifest.value, mine.signal);
      if (!mine.signal.aborted) fill(result, ...verdicts(found, app.store.shown));
    } catch (error) {
      if (!mine.signal.aborted) fill(result, h('p', { class: 'note bad' }, error instanceof Error ? error.message : String(error)));
    }
  }

  async function loadShapes() {
    try {
      const found = await get('shapes');
      const most = Math.max(1, ...found.map((/** @type {any} */ one) => one.count));
      fill(shapes, found.length
        ? h('table', { class: 'shapes-table' }, h('caption', { class: 'hidden' }, 'How many more of each shape fit'),
          h('thead', null, h('tr', null, h('th', { scope: 'col' }, 'Shape'), h('th', { scope: 'col', class: 'number' }, 'More fit'), h('th', null, h('span', { class: 'hidden' }, 'Bar')))),
          h('tbody', null, ...found.map((/** @type {any} */ one) => h('tr', { class: one.count === 0 ? 'none' : '' }, h('th', { scope: 'row' }, one.shape), h('td', { class: 'number' }, count(one.count)), h('td', { class: 'bar-cell' }, bar([{ share: one.count / most, kind: 'granted' }]))))))
        : emptyState('No shapes', 'There are no cards to divide.'));
    } catch (error) {
      fill(shapes, h('p', { class: 'note warn' }, error instanceof Error ? error.message : String(error)));
    }
  }

  return {
    element,
    update() {
      const version = app.store.shown?.version ?? -1;
      // Shapes follow the cluster, but they cost the server something: once per visit, and when the reader comes back.
      if (askedFor === version || (askedFor >= 0 && element.isConnected && shapes.hasChildNodes() && Date.now() - loadedAt < 5000)) return;
      askedFor = version;
      loadedAt = Date.now();
      loadShapes();
    },
  };
}

let loadedAt = 0;

/** @param {any} found @param {import('../cluster.js').Cluster | null} cluster */
function verdicts(found, cluster) {
  /** @param {string} node @param {string} uuid */
  const cardName = (node, uuid) => {
    const card = cluster?.card(node, uuid);
    return card ? `card ${card.index}` : uuid;
  };
  const gangs = (found.gangs ?? []).map((/** @type {any} */ gang) => h('article', { class: `verdict ${gang.fits ? 'fits' : 'misfits'}` },
    h('h3', null, h('span', { class: 'verdict-mark', 'aria-hidden': 'true' }, gang.fits ? '✓' : '✕'), `Gang ${gang.name} of ${count(gang.size)}`, gang.fits ? ' fits as a whole' : ' does not fit as a whole'),
    h('p', null, gang.why)));
  const nodes = found.pods.map((/** @type {any} */ pod) => h('article', { class: `verdict ${pod.fits ? 'fits' : 'misfits'}` },
    h('h3', null, h('span', { class: 'verdict-mark', 'aria-hidden': 'true' }, pod.fits ? '✓' : '✕'), pod.name, pod.fits ? ' fits' : ' does not fit'),
    pod.fits ? h('p', null, 'On ', h('a', { href: nodeLink(pod.node) }, pod.node), pod.cards?.length ? `: ${pod.cards.map((/** @type {string} */ uuid) => cardName(pod.node, uuid)).join(', ')}` : '') : null,
    h('dl', { class: 'reasons' }, ...['why', 'nearest', 'change'].flatMap((key) => (pod[key] ? [h('dt', null, { why: pod.fits ? 'Note' : 'Why', nearest: 'Nearest', change: 'Smallest change' }[key]), h('dd', { class: key }, pod[key])] : [])))));
  nodes.unshift(...gangs);
  if (typeof found.more === 'number' && found.pods.length > 0) {
    const what = found.pods.length > 1 ? ['set of these pods', 'sets of these pods'] : ['such pod', 'such pods'];
    nodes.push(h('p', { class: 'more' }, h('strong', { class: 'number' }, count(found.more)), ` ${found.more === 1 ? `${what[0]} fits` : `${what[1]} fit`} now.`),
      found.stops ? h('p', { class: 'muted' }, `What stops the next one: ${found.stops}`) : null);
  }
  return nodes.filter((/** @type {Node | null} */ node) => node !== null).length ? nodes : [h('p', { class: 'note' }, `${plural(0, 'pod')}: the manifest asks for no card.`)];
}
