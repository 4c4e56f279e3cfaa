// node huge.js: the addon of huge.c lies beside it.
const { attach } = require('./huge.node');

const { hugeBytes, textBytes } = attach('edges=aggressive');
console.log(`${hugeBytes >> 10} of ${textBytes >> 10} KiB of text are on huge pages`);
