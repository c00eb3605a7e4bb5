// @ts-check
import { takeToken } from './api.js';
import { App } from './app.js';

takeToken();
new App().start();
