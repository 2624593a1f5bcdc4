const t = require('fs').readFileSync(0, 'utf8').split(/\s+/).map(Number);
console.log(t[0] + t[1]);
