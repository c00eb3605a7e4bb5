// @ts-check
/** Cards: every card of the cluster, as a map or a table. */

import { CardMap } from '../card_map.js';
import { CardTable } from '../card_table.js';
import { choice, emptyState, swatch } from '../controls.js';
import { cardLink, podLink } from '../details.js';
import { fill, h } from '../dom.js';
import { toggleTerm } from '../filter.js';
import { count, plural, size } from '../format.js';
import { LEVELS } from '../layout.js';
import { HEAT_DARK, HEAT_LIGHT } from '../palette.js';
import { NOTHING, go, readPlace } from '../place.js';
import { isDark } from '../scene.js';

/** Entries of the legend that are shown before "more". */
const LEGEND = 16;
/** Milliseconds without a key before the filter is applied. */
const TYPING = 150;

/** @param {import('../app.js').App} app */
export function createCardsView(app) {
  const map = createMap(app);
  const table = new CardTable({ onSort: (sort) => go({ sort }, { replace: true }), cardLink, podLink });
  let typing = 0;
  const search = h('input', {
    type: 'search', id: 'filter', class: 'search', placeholder: 'Filter: node, pod, ns:team-a, is:idle …', 'aria-label': 'Filter cards',
    autocomplete: 'off', spellcheck: 'false',
    oninput: () => {
      clearTimeout(typing);
      typing = setTimeout(() => go({ filter: search.value.trim() }, { replace: true }), TYPING);
    },
    onkeydown: (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== 'Enter') return;
      clearTimeout(typing);
      go({ filter: search.value.trim() }, { replace: true });
      app.update();
      map.scroller.focus();
      map.moveToMatch(event.shiftKey ? -1 : 1);
    },
  });
  const find = choice({ label: 'Others are', name: 'find', options: [['', 'hidden'], ['1', 'dimmed']], onChoose: (value) => go({ find: value === '1' }, { replace: true }) });
  const grouping = choice({ label: 'Group by', name: 'group', options: [['node', 'Node'], ['model', 'Model'], ['nvlink', 'NVLink']], onChoose: (group) => go({ group }) });
  const colours = choice({ label: 'Colour by', name: 'colour', options: [['namespace', 'Namespace'], ['owner', 'Owner'], ['use', 'Use']], onChoose: (colour) => go({ colour }) });
  const form = choice({ label: 'Show as', name: 'form', options: [['', 'Map'], ['1', 'Table']], onChoose: (value) => go({ table: value === '1' }) });
  const found = h('span', { class: 'found', role: 'status' });
  const legend = h('ul', { class: 'legend', 'aria-label': 'Legend' });
  const zoom = h('div', { class: 'zoom', role: 'group', 'aria-label': 'Zoom' },
    h('button', { type: 'button', 'aria-label': 'Zoom out', title: 'Zoom out (-)', onclick: () => app.zoom(-1) }, '−'),
    h('button', { type: 'button', title: 'Fit everything (0)', onclick: () => go({ zoom: '' }, { replace: true }) }, 'Fit'),
    h('button', { type: 'button', 'aria-label': 'Zoom in', title: 'Zoom in (+)', onclick: () => app.zoom(1) }, '+'));
  const stage = h('div', { class: 'stage' });
  const help = h('p', { id: 'map-help', class: 'hidden' }, 'Arrow keys move between cards, Enter opens a card, Shift Enter its node. The table shows the same.');
  const more = h('details', { class: 'view-options' }, h('summary', null, 'View'), h('div', null, grouping.element, colours.element, find.element, form.element));
  const toolbar = h('div', { class: 'toolbar' }, search, found, more, zoom);
  const element = h('section', { class: 'view cards-view', 'aria-label': 'Cards' }, toolbar, legend, stage, help);
  // Open on a wide screen, where there is room; a button on a phone.
  const wide = matchMedia('(min-width: 1000px)');
  const adapt = () => more.toggleAttribute('open', wide.matches);
  wide.addEventListener('change', adapt);
  adapt();
  let showsAll = false;

  app.zoom = (step) => go({ zoom: String(Math.max(0, Math.min(LEVELS.length - 1, map.levelNumber + step))) }, { replace: true });

  /** @param {import('../scene.js').Prepared} prepared @param {import('../place.js').Place} place */
  function showLegend({ legend: entries, scene }, place) {
    if (place.colour === 'use') {
      const scale = isDark() ? HEAT_DARK : HEAT_LIGHT;
      fill(legend, h('li', null, 'Memory used of what is granted:'),
        h('li', { class: 'heat' }, '0 %', ...scale.map((colour) => h('span', { class: 'swatch', '--colour': colour, 'aria-hidden': 'true' })), '100 %'),
        ...marks(scene.cluster));
      return;
    }
    const key = place.colour === 'owner' ? 'owner' : 'ns';
    const named = entries.filter((entry) => entry.look !== null);
    const rest = entries.filter((entry) => entry.look === null);
    const shown = showsAll ? named : named.slice(0, LEGEND);
    fill(legend,
      ...shown.map((entry) => h('li', null,
        h('button', {
          type: 'button', class: 'legend-entry', title: `Show only ${entry.key}`,
          'aria-pressed': String(place.filter.split(/\s+/).includes(`${key}:${key === 'owner' ? entry.key.split('/')[1] : entry.key}`)),
          onclick: () => go({ filter: toggleTerm(readPlace().filter, key, key === 'owner' ? entry.key.split('/')[1] : entry.key) }),
          onpointerenter: () => emphasise(entry.key), onpointerleave: () => emphasise(''), onfocus: () => emphasise(entry.key), onblur: () => emphasise(''),
        }, swatch(entry.look), h('span', { class: 'legend-name' }, entry.key), h('span', { class: 'number muted' }, size(entry.memory))))),
      named.length > shown.length ? h('li', null, h('button', { type: 'button', class: 'link', onclick: () => { showsAll = true; app.update(); } }, `${named.length - shown.length} more`)) : null,
      rest.length ? h('li', { class: 'legend-entry' }, swatch(null), `${plural(rest.length, 'other')}`, h('span', { class: 'number muted' }, size(rest.reduce((sum, entry) => sum + entry.memory, 0)))) : null,
      ...marks(scene.cluster));
  }

  /** @param {string} key */
  function emphasise(key) {
    if (app.scenes.emphasis === key) return;
    app.scenes.emphasis = key;
    const cluster = app.store.shown;
    if (cluster) map.show(app.scenes.prepare(cluster, readPlace()).scene);
  }

  return {
    element,
    map,
    /** @param {import('../store.js').Change | null} change */
    update(change) {
      const cluster = app.store.shown;
      if (!cluster) return;
      const place = readPlace();
      if (document.activeElement !== search) search.value = place.filter;
      grouping.set(place.group);
      colours.set(place.colour);
      find.set(place.find ? '1' : '');
      form.set(place.table ? '1' : '');
      find.element.hidden = place.filter === '';
      toolbar.hidden = cluster.nodes.size === 0;
      legend.hidden = place.table || cluster.nodes.size === 0;
      grouping.element.hidden = colours.element.hidden = place.table;
      if (cluster.nodes.size === 0) {
        fill(stage, noCards(cluster));
        return;
      }
      const prepared = app.prepared();
      fill(found, place.filter ? `${count(prepared.matching)} of ${plural(prepared.total, 'card')}` : plural(prepared.total, 'card'));
      showLegend(prepared, place);
      zoom.hidden = place.table;
      if (place.table) {
        if (stage.firstChild !== table.element) fill(stage, table.element);
        table.show(prepared.scene.sections.flatMap((section) => section.blocks.flatMap((block) => block.cards)).filter((card) => !prepared.scene.isDim(card)), cluster, place.sort);
      } else if (prepared.total > 0 && prepared.scene.sections.length === 0) {
        fill(stage, emptyState('No card matches', h('p', null, 'No card matches ', h('code', null, place.filter), '.'), h('button', { type: 'button', onclick: () => go({ filter: '' }) }, 'Clear the filter')));
      } else {
        if (stage.firstChild !== map.element) fill(stage, map.element);
        map.scroller.setAttribute('aria-label', `Map of ${plural(prepared.matching, 'card')}`);
        map.show(prepared.scene);
        if (change?.changes) map.flash(change.changes.cards);
      }
    },
    focusFilter() {
      search.focus();
      search.select();
    },
  };
}

/** The map with what its events mean on this page. @param {import('../app.js').App} app */
export function createMap(app) {
  const map = new CardMap({
    onOpen: (target) => {
      app.details.openFrom(map.scroller);
      go('card' in target ? { ...NOTHING, node: target.card.node, card: target.card.uuid } : { ...NOTHING, node: target.node });
    },
    onZoom: (step) => app.zoom(step),
    announce: (text) => app.announce(text),
  });
  return map;
}

/** What patterns mean; only those that the cluster has. @param {import('../cluster.js').Cluster} cluster */
function marks(cluster) {
  const seen = new Set();
  let [isMeasured, hasClaims] = [false, false];
  for (const node of cluster.nodes.values()) {
    for (const card of node.cards) {
      if (card.state) seen.add(card.state.split(':')[0]);
      if (card.mode === 'mig') seen.add('mig');
      isMeasured ||= card.used !== null;
      if (card.claims.length) hasClaims = true;
    }
  }
  const entries = [['free', 'Free']];
  if (seen.has('unhealthy')) entries.push(['unhealthy', 'Unhealthy']);
  if ([...seen].some((state) => state !== 'unhealthy' && state !== 'mig')) entries.push(['cordoned', 'Takes no pods']);
  if (seen.has('mig')) entries.push(['mig', 'MIG']);
  if (isMeasured) entries.push(['used', 'Used']);
  if (cluster.held.size) entries.push(['gang', 'Held for a gang']);
  if (hasClaims) entries.push(['claim', 'Nominated']);
  return [h('li', { class: 'marks' }, h('ul', { 'aria-label': 'Patterns' },
    ...entries.map(([kind, text]) => h('li', { class: 'legend-entry mark-entry' }, h('span', { class: `mark mark-${kind}`, 'aria-hidden': 'true' }), text))))];
}

/** @param {import('../cluster.js').Cluster} cluster */
function noCards(cluster) {
  return emptyState('No cards yet',
    cluster.source.problem || 'No node of this cluster has registered a card.',
    h('p', null, 'Nodes with the label ', h('code', null, 'gpu=on'), ' run the agent that registers their cards. ', h('code', null, 'tessera doctor'), ' says what is missing.'));
}
