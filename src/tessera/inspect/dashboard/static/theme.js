// @ts-check
// Not a module, so that it runs before the first paint: a dark page must not begin with a white flash.
{
  const chosen = localStorage.getItem('tessera.theme');
  const isDark = chosen ? chosen === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset.theme = isDark ? 'dark' : 'light';
}
