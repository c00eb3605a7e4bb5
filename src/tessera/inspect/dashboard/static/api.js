// @ts-check
/** The server's interface: documents, and the stream of events. Every path is relative, so that a prefix does not matter. */

const TOKEN = 'tessera.token';

export class ApiError extends Error {
  /** @param {number} status  0 if there was no response @param {string} message */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Take a token out of the address, where `tessera dashboard` puts it, and keep it for this tab. */
export function takeToken() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const token = fragment.get('token');
  if (token === null) return;
  saveToken(token);
  fragment.delete('token');
  history.replaceState(null, '', `#${fragment}`);
}

/** @param {string} token */
export function saveToken(token) {
  sessionStorage.setItem(TOKEN, token);
}

/**
 * @param {string} path
 * @param {RequestInit & {headers?: Record<string, string>}} options
 * @returns {Promise<Response>}
 */
async function request(path, options) {
  const token = sessionStorage.getItem(TOKEN);
  // The apiserver's proxy keeps Authorization to itself, so that the token goes in a header of our own as well.
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}`, 'X-Tessera-Token': token } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: 'no-store' });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(0, 'The server does not respond.');
  }
  if (response.ok) return response;
  const body = await response.text();
  let message = body.trim();
  try {
    message = JSON.parse(body).error ?? message;
  } catch {
    // a proxy's error page is no JSON: its text has to do
  }
  throw new ApiError(response.status, message.slice(0, 1000) || `The server responded with status ${response.status}.`);
}

/**
 * @param {string} path
 * @param {Record<string, string | number | undefined | null>} [query]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function get(path, query = {}, signal) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== '') search.set(name, String(value));
  }
  const response = await request(`api/${path}${search.size ? `?${search}` : ''}`, { signal });
  try {
    return await response.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, 'The connection ended before the response did.');
  }
}

/** @param {string} path @param {string} body @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function post(path, body, signal) {
  const headers = { 'Content-Type': 'application/yaml' };
  return (await request(`api/${path}`, { method: 'POST', body, headers, signal })).json();
}

/** @typedef {{kind: string, version: number, document: any}} ServerEvent  `version` is NaN if the event has none */

/**
 * Read events until the stream ends. EventSource cannot send a token, so that the stream is read here.
 * @param {number} after  the version that is known
 * @param {{signal: AbortSignal, onOpen: () => void, onEvent: (event: ServerEvent) => void, onBytes: () => void}} listener
 */
export async function readEvents(after, { signal, onOpen, onEvent, onBytes }) {
  const response = await request('api/events', { signal, headers: { Accept: 'text/event-stream', 'Last-Event-ID': String(after) } });
  onOpen();
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    onBytes();
    const blocks = (rest + value).split(/\r?\n\r?\n/);
    rest = blocks.pop() ?? '';
    for (const block of blocks) readEvent(block, onEvent);
  }
}

/** @param {string} block @param {(event: ServerEvent) => void} onEvent */
function readEvent(block, onEvent) {
  let kind = 'message';
  let version = NaN;
  const data = [];
  for (const line of block.split(/\r?\n/)) {
    const colon = line.indexOf(':');
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (field === 'event') kind = value;
    else if (field === 'id') version = Number(value);
    else if (field === 'data') data.push(value);
  }
  if (data.length || kind === 'resync') onEvent({ kind, version, document: JSON.parse(data.join('\n') || 'null') });
}
