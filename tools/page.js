// The network of model.py and the sampler of sample.py in plain JavaScript, for one text at a time: T tokens, width D,
// H heads of width K, vocabulary V. Matrices are flat Float32Arrays, row by row. tools/page.py puts this file and the
// weights into a page; tools/page.html is what one sees of it.
"use strict";

// Read numbers of 16 bits from base64 -> Float32Array.
function float16(text) {
  const bytes = atob(text), out = new Float32Array(bytes.length / 2);
  for (let n = 0; n < out.length; n++) {
    const bits = bytes.charCodeAt(2 * n) | bytes.charCodeAt(2 * n + 1) << 8;
    const exponent = bits >> 10 & 31, fraction = bits & 1023;
    const size = exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24;
    out[n] = bits >> 15 ? -size : size;
  }
  return out;
}

// Multiply x (T, I) by a matrix w that is stored (O, I), and add a bias (O) -> (T, O). Two rows of w and four rows of x
// at a time: each number that is loaded is used four times or twice.
function matmul(x, w, T, I, O, bias) {
  const out = new Float32Array(T * O);
  for (let o = 0; o < O; o += 2) {
    const w0 = o * I, w1 = Math.min(o + 1, O - 1) * I;
    for (let t = 0; t < T; t += 4) {
      const [x0, x1, x2, x3] = [t, t + 1, t + 2, t + 3].map(n => Math.min(n, T - 1) * I);
      let a0 = 0, a1 = 0, a2 = 0, a3 = 0, b0 = 0, b1 = 0, b2 = 0, b3 = 0;
      for (let i = 0; i < I; i++) {
        const u = w[w0 + i], v = w[w1 + i], y0 = x[x0 + i], y1 = x[x1 + i], y2 = x[x2 + i], y3 = x[x3 + i];
        a0 += u * y0; a1 += u * y1; a2 += u * y2; a3 += u * y3;
        b0 += v * y0; b1 += v * y1; b2 += v * y2; b3 += v * y3;
      }
      const a = [a0, a1, a2, a3], b = [b0, b1, b2, b3];
      for (let n = 0; n < 4 && t + n < T; n++) {
        out[(t + n) * O + o] = a[n] + (bias ? bias[o] : 0);
        if (o + 1 < O) out[(t + n) * O + o + 1] = b[n] + (bias ? bias[o + 1] : 0);
      }
    }
  }
  return out;
}

// Divide each stretch of x, as long as gain, by its root mean square, and multiply it by gain.
function rmsNorm(x, gain, eps) {
  const out = new Float32Array(x.length), size = gain.length;
  for (let first = 0; first < x.length; first += size) {
    let sum = 0;
    for (let i = 0; i < size; i++) sum += x[first + i] ** 2;
    const scale = 1 / Math.sqrt(sum / size + eps);
    for (let i = 0; i < size; i++) out[first + i] = x[first + i] * scale * gain[i];
  }
  return out;
}

// Turn column i of each head of x (T, heads, K) together with column i + K/2, in place.
function rotate(x, positions, heads, frequencies) {
  const half = frequencies.length;
  positions.forEach((position, t) => frequencies.forEach((frequency, i) => {
    const cos = Math.cos(position * frequency), sin = Math.sin(position * frequency);
    for (let h = 0; h < heads; h++) {
      const at = (t * heads + h) * 2 * half + i, a = x[at], b = x[at + half];
      x[at] = a * cos - b * sin;
      x[at + half] = b * cos + a * sin;
    }
  }));
  return x;
}

// Replace numbers by their softmax, in place.
function softmax(numbers) {
  const top = numbers.reduce((a, b) => Math.max(a, b), -Infinity);
  let total = 0;
  for (let i = 0; i < numbers.length; i++) total += numbers[i] = Math.exp(numbers[i] - top);
  for (let i = 0; i < numbers.length; i++) numbers[i] /= total;
  return numbers;
}

// Mix the values that each token sees: q (T, H, K), k and v (T, KV, K), sees(i, j) -> (T, H, K).
function attention(q, k, v, T, c, sees) {
  const out = new Float32Array(q.length), K = c.head_dim, p = new Float64Array(T);
  for (let h = 0; h < c.n_head; h++) {
    const group = Math.floor(h * c.kv_heads / c.n_head);
    for (let i = 0; i < T; i++) {
      const own = (i * c.n_head + h) * K;
      for (let j = 0; j < T; j++) {
        const other = (j * c.kv_heads + group) * K;
        let dot = 0;
        for (let d = 0; d < K; d++) dot += q[own + d] * k[other + d];
        p[j] = sees(i, j) ? dot / Math.sqrt(K) : -Infinity;
      }
      softmax(p);
      for (let j = 0; j < T; j++) {
        const other = (j * c.kv_heads + group) * K;
        for (let d = 0; d < K; d++) out[own + d] += p[j] * v[other + d];
      }
    }
  }
  return out;
}

class Model {
  // spec: config, frequencies, tensors and weights, as tools/page.py writes them.
  constructor(spec) {
    this.config = spec.config;
    this.frequencies = spec.frequencies;
    const all = float16(spec.weights);
    let first = 0;
    this.w = Object.fromEntries(spec.tensors.map(([name, size]) => [name, all.subarray(first, first += size)]));
  }

  // Say which column j each column i of the tokens z sees, as model.attention_mask does. Column 0 of a causal model is
  // the start token, which no other token sees.
  mask(z) {
    const c = this.config, size = c.block_causal || z.length, number = i => Math.floor(i / size);
    return (i, j) => (!c.causal || j === i || 0 < j && j < i) && number(j) <= number(i);
  }

  // Run the network over the tokens z (T) -> states (T, D).
  trunk(z) {
    const c = this.config, w = this.w, T = z.length, D = c.d_model, K = c.head_dim;
    const Q = c.n_head * K, KV = c.kv_heads * K, sees = this.mask(z), x = new Float32Array(T * D);
    const positions = z.map((_, i) => c.causal ? Math.max(i - 1, 0) : i);
    z.forEach((id, t) => x.set(w.embed.subarray(id * D, (id + 1) * D), t * D));
    for (let n = 0; n < c.n_layer; n++) {
      const of = name => w[`${n}.${name}`], add = y => y.forEach((value, i) => { x[i] += value; });
      const heads = (h, name, size) => {
        const y = matmul(h, of(name), T, D, size, of(name + "_bias"));
        return of(name + "_norm") ? rmsNorm(y, of(name + "_norm"), c.norm_eps) : y;
      };
      let h = rmsNorm(x, of("attn_norm"), c.norm_eps);
      const q = rotate(heads(h, "q", Q), positions, c.n_head, this.frequencies);
      const k = rotate(heads(h, "k", KV), positions, c.kv_heads, this.frequencies);
      add(matmul(attention(q, k, heads(h, "v", KV), T, c, sees), of("o"), T, Q, D));
      h = rmsNorm(x, of("mlp_norm"), c.norm_eps);
      const inner = matmul(h, of("gate"), T, D, c.ff), up = matmul(h, of("up"), T, D, c.ff);
      for (let i = 0; i < inner.length; i++) inner[i] *= up[i] / (1 + Math.exp(-inner[i]));
      add(matmul(inner, of("down"), T, c.ff, D));
    }
    return rmsNorm(x, w.norm, c.norm_eps);
  }

  // Compute the logits of the tokens in some columns of z (T) -> one array (V) each. The mask cannot be predicted.
  logits(z, columns) {
    const c = this.config, D = c.d_model, V = c.vocab_size;
    const h = this.trunk(c.causal ? [c.start_id, ...z.slice(0, -1)] : z), picked = new Float32Array(columns.length * D);
    const source = i => c.shift && !c.causal ? Math.max(i - 1, 0) : i;  // a shifted model predicts one place before
    columns.forEach((column, n) => picked.set(h.subarray(source(column) * D, (source(column) + 1) * D), n * D));
    const all = matmul(picked, this.w.head || this.w.embed, columns.length, D, V);
    return columns.map((_, n) => {
      const row = all.subarray(n * V, (n + 1) * V);
      if (c.mask_id < V) row[c.mask_id] = -1e30;
      return row;
    });
  }
}

// ---- orders and rules, as in sample.py ------------------------------------------------------------------------------

const ORDERS = {  // which masks first: probabilities p (V), of the token, random number, column -> score
  confidence: (p, own) => own,
  margin: p => { const [a, b] = best(p, 2); return a[1] - b[1]; },
  entropy: p => -entropy(p),
  left: (p, own, random, column) => -column,
  random: (p, own, random) => random,
  sampled: (p, own) => own,
};
const RULES = {  // how many at a step: Block b, mask k of it, plan -> whether it is filled now
  quota: (b, k) => b.rank[k] < Math.ceil(b.rank.length / Math.max(b.steps - b.i, 1)),
  threshold: (b, k, plan) => b.rank[k] === 0 || b.confidence[k] >= plan.threshold,
  static: (b, k) => b.rank[k] < Math.max(Math.floor(b.length / b.steps) + (b.i < b.length % b.steps), 1),
  dynamic: (b, k, plan) => RULES.static(b, k) || b.confidence[k] > plan.threshold,
};

function entropy(p) { return -p.reduce((sum, x) => sum + x * Math.log(x + 1e-10), 0); }
function best(p, n) {  // the n most probable tokens -> [[id, probability], ...]
  const top = [];
  p.forEach((x, id) => {
    if (top.length === n && x <= top[n - 1][1]) return;
    const at = top.findIndex(other => x > other[1]);
    top.splice(at < 0 ? top.length : at, 0, [id, x]);
    top.length = Math.min(top.length, n);
  });
  return top;
}
function rounded(score) {  // to 12 bits, so that rounding does not decide between equal scores
  const bits = new Uint32Array(new Float32Array([score]).buffer);
  bits[0] = bits[0] + 0x3ff + (bits[0] >>> 11 & 1) & ~0x7ff;
  return new Float32Array(bits.buffer)[0];
}
function uniform(...numbers) {  // a number in (0, 1) that looks random and depends on these whole numbers alone
  let h = 0x9e3779b9;
  for (const n of numbers) {
    h = Math.imul(h ^ n, 0x85ebca6b);
    h = Math.imul(h ^ h >>> 13, 0xc2b2ae35);
    h ^= h >>> 16;
  }
  return ((h >>> 8) + 0.5) / 2 ** 24;
}

// ---- steps ----------------------------------------------------------------------------------------------------------

// Begin to fill the masks of z -> state: asked, which tokens were masked; step and p, when each was written and how
// probable it was; top, the five best alternatives then; n, steps so far; i, steps so far in the block that begins at
// column `block`.
function begin(z, seed, maskId) {
  const all = value => z.map(() => value), asked = z.map(id => id === maskId);
  return {z: [...z], asked, step: all(-1), p: all(0), top: all([]), n: 0, block: -1, i: 0, seed};
}

// Find the block to work on -> its first column, its length, and the steps that it may take.
function currentBlock(s, c, plan) {
  const T = s.z.length, next = s.z.indexOf(c.mask_id), length = Math.min(plan.block_len || T, c.block_causal || T, T);
  if (c.causal) return {first: next, length: 1, steps: 1};
  if (c.block_causal) return {first: next - next % length, length, steps: plan.steps};
  const start = s.asked.indexOf(true), first = start + Math.floor((next - start) / length) * length;
  const count = end => s.asked.slice(0, end).filter(Boolean).length;
  const before = end => Math.floor(plan.steps * count(end) / count(T));
  return {first, length, steps: Math.max(before(first + length) - before(first), 1)};
}

// Take one step: of the masks in the current block, those that the rule picks get a token. Changes s.
function fillStep(model, s, plan) {
  const c = model.config, block = currentBlock(s, c, plan);
  if (block.first !== s.block) s.i = 0;
  const masks = s.z.map((_, i) => i).filter(i =>
    s.z[i] === c.mask_id && block.first <= i && i < block.first + block.length);
  const seen = model.logits(s.z, masks).map((logits, n) => {
    const p = softmax(Float64Array.from(logits)), random = k => uniform(s.seed, s.z.length - masks[n], s.n, k);
    const top = s.top[masks[n]] = best(p, 5);
    let token = top[0][0];
    if (plan.temperature > 0) {
      let left = random(0);
      const drawn = softmax(Float64Array.from(logits, x => x / plan.temperature)).findIndex(x => (left -= x) < 0);
      token = drawn < 0 ? token : drawn;
    }
    const own = plan.order === "sampled" ? p[token] : top[0][1];
    const score = ORDERS[plan.order](p, own, random(1), masks[n]);
    return {token, p: p[token], confidence: own,
      score: plan.order === "left" || plan.order === "random" ? score : rounded(score)};
  });
  const order = seen.map((_, n) => n).sort((a, b) => seen[b].score - seen[a].score || a - b), rank = [];
  order.forEach((n, r) => { rank[n] = r; });
  const b = {rank, i: s.i, steps: block.steps, length: block.length, confidence: seen.map(m => m.confidence)};
  const rule = c.block_causal && plan.rule === "quota" ? "static" : plan.rule;
  seen.forEach((m, n) => {
    if (c.causal || RULES[rule](b, n, plan)) [s.z[masks[n]], s.step[masks[n]], s.p[masks[n]]] = [m.token, s.n, m.p];
  });
  if (c.causal || plan.early_end) fillBehindEnd(s, c);
  Object.assign(s, {n: s.n + 1, i: s.i + 1, block: block.first});
}

// Fill the rest with ends of text if there is one behind all given tokens and no mask before it. In a block model the
// block that has the end is filled first.
function fillBehindEnd(s, c) {
  const number = i => c.block_causal ? Math.floor(i / c.block_causal) : i, given = s.asked.lastIndexOf(false);
  const end = s.z.findIndex((id, i) => i > given && id === c.eos_id && s.step[i] >= 0), mask = s.z.indexOf(c.mask_id);
  if (end < 0 || mask < 0 || number(mask) <= number(end)) return;
  s.z.forEach((id, i) => { if (id === c.mask_id) [s.z[i], s.step[i], s.p[i]] = [c.eos_id, s.n, 1]; });
}
