"""
A frozen base in 8 or 4 bits, with LoRA beside it (QLoRA, 2305.14314):

    python train.py config/llada_gsm8k_grpo.py --quantized.bits=4
    python sample.py FOLDER --quantized.bits=8 --prompt=...

The matrices of the layers become codes while their folder is read, one matrix after the other. Each product, also in
the backward pass, makes numbers of 4 bits again, and multiplies 8 bits as they are and scales the sums. Embeddings,
head, norms and biases stay numbers.

    8 bits    w = code * scale, with one scale for each output: its largest |w| / 127.5. Equals torchao's
    4 bits    w = NF4[code] * scale, with one scale for each 64 inputs of an output: their largest |w|. NF4 are
              quantiles of a normal distribution. scale = offset + CODES_8[code] * outer, the offset being the mean of
              all scales, with one `outer` for each 256 of them. Equals bitsandbytes'

Shapes: I inputs, O outputs. A folder has matrices (O, I), and scales are counted along their rows.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import config
from system import kernels, sharding

BLOCK = 64  # numbers that share a scale
GROUP = 256  # scales that share an outer scale
ROWS = 512  # rows of a matrix that are made codes at a time
NF4 = np.array([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0], np.float32)  # fmt: skip


def codes_of_8_bits():
    """List the 256 values of 1511.04561's dynamic type, ascending: 0, 1 and, for e = 0..6, the middles of 2^e equal
    parts of 0.1..1, times 10^(e - 6), with both signs."""
    values = [0.0, 1.0]
    for e in range(7):
        edges = np.linspace(0.1, 1, 2**e + 1, dtype=np.float32)
        middles = 10.0 ** (e - 6) * ((edges[:-1] + edges[1:]) / np.float32(2)).astype(float)
        values += [*middles, *-middles]
    return np.sort(np.float32(values))


CODES_8 = codes_of_8_bits()


# ---- how a matrix is stored ------------------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Int8(kernels.Packed):
    """A matrix in 8 bits."""

    codes: Any  # (I, O) int8
    scale: Any  # (1, O) float32
    dtype: str = dataclasses.field(metadata=dict(static=True))  # of the numbers

    @property
    def shape(self):
        return self.codes.shape

    def numbers(self):
        return (self.codes * self.scale).astype(self.dtype)

    def multiplied(self, x, dtype):
        """Multiply x by codes, then scale the sums: within a product a GPU converts codes but does not scale them, and
        would write the whole matrix first."""
        sums = kernels.matmul(x, self.codes.astype(self.dtype), "float32")
        return (sums * self.scale).astype(dtype or kernels.between(self.dtype))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Int4(kernels.Packed):
    """A matrix in 4 bits, two codes in a byte."""

    codes: Any  # (I / 2, O) uint8: that of input 2 i times 16, and that of input 2 i + 1
    scale: Any  # (I / 64, O) uint8
    outer: Any  # (I O / 64 / 256, rounded up) float32
    offset: Any  # () float32
    dtype: str = dataclasses.field(metadata=dict(static=True))  # of the numbers

    @property
    def shape(self):
        half, n_out = self.codes.shape
        return 2 * half, n_out

    def numbers(self):
        half, n_out = self.codes.shape
        n_blocks = 2 * half // BLOCK
        number = jnp.arange(n_out) * n_blocks + jnp.arange(n_blocks)[:, None]  # of each scale, along the rows (O, I)
        scale = jnp.asarray(CODES_8)[self.scale] * self.outer[number // GROUP] + self.offset
        codes = jnp.stack([self.codes >> 4, self.codes & 15], 1).reshape(n_blocks, BLOCK, n_out)
        return (jnp.asarray(NF4)[codes] * scale[:, None]).astype(self.dtype).reshape(2 * half, n_out)


def nearest(values, x):
    """Find the number of the nearest of ascending values for each of x -> uint8, in the shape of x."""
    middles = (values[:-1] + values[1:]) / 2
    if len(middles) > 16:
        return np.searchsorted(middles, x).astype(np.uint8)
    codes = np.zeros(x.shape, np.uint8)  # counting is 6 times as fast where there are few
    for middle in middles:
        codes += x > middle
    return codes


def in_8_bits(rows):
    """Make codes of a matrix (O, I) -> {field of Int8: array}."""
    smallest = np.finfo(np.float32).eps
    scale = np.maximum(np.abs(rows).max(1, keepdims=True) / np.float32(127.5), smallest)
    codes = np.clip(np.rint(rows * (1 / scale)), -128, 127).astype(np.int8)
    return {"codes": codes.T, "scale": scale.T}


def in_4_bits(rows):
    """Make codes of some rows (O, I) of a matrix -> {"codes": (I / 2, O), "scale": (I / 64, O) not yet codes}."""
    blocks = rows.reshape(len(rows), -1, BLOCK)
    scale = np.abs(blocks).max(-1)
    codes = nearest(NF4, blocks / np.where(scale > 0, scale, 1)[..., None]).reshape(rows.shape)
    return {"codes": (codes[:, ::2] << 4 | codes[:, 1::2]).T, "scale": scale.T}


def scales_in_8_bits(scale):
    """Make codes of the scales (I / 64, O) of a matrix -> {field of Int4: array}."""
    along_rows = scale.T.reshape(-1)
    offset = along_rows.mean(dtype=np.float32)
    groups = np.zeros((-(-along_rows.size // GROUP), GROUP), np.float32)
    groups.reshape(-1)[: along_rows.size] = along_rows - offset
    outer = np.abs(groups).max(1)
    codes = nearest(CODES_8, groups / np.where(outer > 0, outer, 1)[:, None]).reshape(-1)[: along_rows.size]
    return {"scale": codes.reshape(scale.T.shape).T, "outer": outer, "offset": offset}


def empty(shape, bits, dtype) -> Int8 | Int4:
    """Make a matrix (I, O) of codes that are 0."""
    n_in, n_out = shape
    if bits == 8:
        return Int8(jnp.zeros(shape, jnp.int8), jnp.zeros((1, n_out)), dtype)
    n_scales = n_in // BLOCK * n_out
    codes = jnp.zeros((n_in // 2, n_out), jnp.uint8)
    scale = jnp.zeros((n_in // BLOCK, n_out), jnp.uint8)
    return Int4(codes, scale, jnp.zeros(-(-n_scales // GROUP)), jnp.zeros(()), dtype)


def packed(matrix, bits, dtype) -> Int8 | Int4:
    """Make codes of a matrix (I, O) in 16 or 32 bits."""
    rows, of_rows = matrix.T, in_8_bits if bits == 8 else in_4_bits
    parts = [of_rows(np.asarray(rows[i : i + ROWS], np.float32)) for i in range(0, len(rows), ROWS)]
    found = {name: np.concatenate([part[name] for part in parts], 1) for name in parts[0]}
    found |= scales_in_8_bits(found["scale"]) if bits == 4 else {}
    return (Int8 if bits == 8 else Int4)(**jax.tree.map(jnp.asarray, found), dtype=dtype)


def packing(bits) -> Callable:
    """Make pack(name, shape, fetch, dtype) -> the matrix of this name as codes; None: it stays numbers. fetch(): its
    numbers; fetch None: codes that are 0."""

    def pack(name, shape, fetch, dtype):
        if name.startswith(("router", "expert")) or len(shape) != 2:
            return None
        if bits == 4 and shape[0] % BLOCK:
            raise ValueError(f"quantized.bits=4: {name} has {shape[0]} inputs, and {BLOCK} of them share a scale: take "
                             "quantized.bits=8")  # fmt: skip
        return packed(fetch(), bits, dtype) if fetch else empty(shape, bits, dtype)

    return pack


# ---- the key ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Keys(config.Section):
    bits: int = config.key(4, "bits of the frozen matrices beside LoRA, 8 or 4", choices=(8, 4))

    @property
    def pack(self):
        return packing(self.bits)

    def between_keys(self, c):
        bits = f"quantized.bits={self.bits}"
        yield (not (config.has_frozen_base(c) or c.eval_only),
               f"{bits} is for a base that stays as it is: set lora.rank, as in --lora.rank=16, or --eval_only=True")
        yield c.objective == "judge", f"{bits}: a judge is made of a model in 16 or 32 bits; leave it out"
        yield (bool(sharding.shape()) or c.mesh and max(c.mesh) > 1,
               f"{bits} is for one device: over several, --mesh splits a base in 16 bits; leave it out")

    def fits(self, c, shape, where):
        yield (shape.mlp == "moe",
               f"quantized.bits={self.bits}: the model {where} has experts, which would stay in 16 bits; leave it out")
