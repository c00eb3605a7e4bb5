// @ts-check
/** The server's interface: documents as JSON. Every path is relative, so that a prefix does not matter. */

const TOKEN = 'tessera.token';

export class ApiError extends Error {
  /** @param {number} status  0 if there was no response @param {string} message */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Take a token out of the address, where `tessera dashboard` puts it, and keep it for this tab; false if there is none. */
export function takeToken() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const token = fragment.get('token');
  if (token === null) return false;
  saveToken(token);
  fragment.delete('token');
  history.replaceState(null, '', `#${fragment}`);
  return true;
}

export function hasToken() {
  return sessionStorage.getItem(TOKEN) !== null;
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
