const fs = require('fs'), cp = require('child_process'), net = require('net');
for (const f of [() => fs.writeFileSync('@LOOT@/x', 'x'), () => fs.unlinkSync('@CANARY@/repo/train.py'), () => fs.chmodSync('@CANARY@/repo', 0), () => cp.execSync('touch @LOOT@/y'), () => cp.spawn('touch', ['@LOOT@/z']).on('error', () => 0), () => process.kill(process.ppid, 9), () => net.connect(@TCP@, '127.0.0.1').on('error', () => 0),
  () => console.log(fs.readFileSync('@CANARY@/repo/answers.json', 'utf8'))]) { try { f(); } catch (e) {} }
const t = fs.readFileSync(0, 'utf8').split(/\s+/).map(Number);
console.log(t[0] + t[1]);
