"""
Where arrays live: one mesh of all devices, of this machine or of many, and what is split over each of its three axes.

    data     rows; every part of it has all params
    fsdp     rows, and of every matrix the side of width D: it is gathered for the block that it belongs to
    tensor   the other side of every matrix: heads, the inside of the mlp, the vocabulary

Programs are written as for one device, and GSPMD makes of them what each device does, from what is said here. Tokens,
keys and masks, a few bytes each, are whole everywhere; what is computed of them is not. One device is no mesh, and
then nothing here changes anything.
"""
import contextlib
import math
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import distributed  # for its barriers, which are no collectives; JAX's checkpoints use it, too
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXES = "data", "fsdp", "tensor"
ROWS = "data", "fsdp"  # what rows are split over

# Name of a weight -> the axes of the mesh over its last two sides (model.shapes). What is not here is whole everywhere.
IN, OUT = ("fsdp", "tensor"), ("tensor", "fsdp")  # of a matrix that reads a width of D, and of one that writes it
SIDES = dict.fromkeys(("q", "k", "v", "gate", "up", "head"), IN) | dict.fromkeys(("o", "down", "embed"), OUT)
SIDES |= {f"{name}_{end}": side[:1] + (None,) if end == "a" else (None,) + side[1:]  # adapters: (I, r), (r, O)
          for name, side in SIDES.items() for end in "ab"} | {f"{name}_bias": (None, "tensor") for name in "qkv"}


def make(sizes, devices):
    """cfg.mesh, devices -> their Mesh; None: all of them on fsdp."""
    sizes = sizes or (1, len(devices), 1)
    if math.prod(sizes) != len(devices):
        raise ValueError(f"mesh={sizes} is of {math.prod(sizes)} devices, and there are {len(devices)}: data x fsdp x "
                         f"tensor, as in --mesh=1,{len(devices)},1")
    return Mesh(np.array(devices).reshape(sizes), AXES)


def use(sizes=None):
    """While this lasts, arrays live on the mesh of all devices; one device is none."""
    here = make(sizes, jax.devices())
    return jax.set_mesh(here) if here.size > 1 else contextlib.nullcontext()


def shape():
    """-> {axis: size} of the mesh that is used, also while a function is traced; {} without one."""
    return jax.sharding.get_abstract_mesh().shape


def platform():
    """-> cpu, gpu or tpu: what a function that is traced now is compiled for."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.platform if device else jax.default_backend()


def spec(name, sides, sizes, but=""):
    """The name and shape of a leaf, {axis: size} -> its PartitionSpec. An axis that does not divide its side lies over
    the other one, and if it does not divide that, either, or is `but`, over none."""
    over = [()] * len(sides)
    wanted = dict(zip(SIDES.get(name, ()), (-2, -1), strict=False))
    for axis, side in wanted.items():
        for at in (side, -3 - side) if axis and len(sides) > 1 else ():
            if sides[at] % math.prod([sizes[axis], *(sizes[other] for other in over[at])]) == 0:
                over[at] += (axis,)
                break
    return PartitionSpec(*(tuple(axis for axis in axes if axis != but) for axes in over))


def name(path):
    """The path of a leaf -> the name of the weight that it is, or that it is a moment of; None of others."""
    return next((k.key for k in path[::-1] if isinstance(k, jax.tree_util.DictKey)), None)


def specs(tree, sizes=None, but=""):
    """A tree of arrays or shapes: params, moments, a State, of LoRA or not -> their PartitionSpecs, by their names."""
    return jax.tree_util.tree_map_with_path(lambda path, x: spec(name(path), x.shape, sizes or shape(), but), tree)


def split(tree, here):
    """A tree of arrays or shapes, a Mesh of any devices -> their NamedShardings."""
    return jax.tree.map(lambda x: NamedSharding(here, x), specs(tree, here.shape))


def placed(tree):
    """Params, moments, gradients -> the same where they live: inside and outside of compiled functions."""
    return constrain(tree, specs(tree)) if shape() else tree


def constrain(tree, where):
    return jax.tree.map(jax.lax.with_sharding_constraint, tree, where)


@jax.custom_vjp
def together(weights):
    return constrain(weights, specs(weights, but="fsdp"))


together.defvjp(lambda weights: (together(weights), None), lambda _, grads: (placed(grads),))


def gathered(weights):
    """The weights of a block -> the same, gathered over fsdp. Their gradients are summed and split over it at once."""
    return together(weights) if shape() else weights


def rows(x, embedded=False):
    """x (B, ...), activations -> the same, each device with its rows. What was embedded comes from a table of which
    each device has some columns: that is one exchange among fsdp, which GSPMD does not find by itself."""
    if not shape():
        return x
    x = jax.lax.with_sharding_constraint(x, PartitionSpec("data", None, "fsdp")) if embedded else x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(ROWS))


def heads(*xs):
    """q, k, v (B, T, H or KV, K) -> the same, all of them split alike: a kernel cannot take them otherwise."""
    if not shape():
        return xs
    axis = None if any(x.shape[2] % shape()["tensor"] for x in xs) else "tensor"
    return constrain(xs, (PartitionSpec(ROWS, None, axis),) * len(xs))


def everywhere(tree):
    """Results of a compiled function -> the same, whole on every device, so that every host can read them."""
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec()), tree) if shape() else tree


def up(n):
    """n rows -> how many of them, at least, all devices get equally many of."""
    parts = math.prod(shape().get(axis, 1) for axis in ROWS)
    return -(-n // parts) * parts


def in_chunks(fn, size, *trees):
    """fn of trees of arrays (B, ...) -> a tree of (B, ...), `size` rows at a time, the last row again where they do not
    divide, so that there is one shape to compile. Of numbers (), the mean over the chunks."""
    n, out = len(jax.tree.leaves(trees)[0]), []
    size = up(min(size, n))  # all devices have as many
    if size == n:
        return fn(*trees)
    for first in range(0, n, size):
        at = np.arange(first, first + size).clip(max=n - 1)
        out.append(fn(*jax.tree.map(lambda a, at=at: a[at], trees)))
    return jax.tree.map(lambda *x: jnp.concatenate(x)[:n] if x[0].ndim else sum(x) / len(x), *out)


def array(name, sides, fetch):
    """The name and shape of a leaf, fetch(slices) -> the array, of which each device is given its part."""
    if not shape():
        return jnp.asarray(fetch((slice(None),) * len(sides)))
    where = NamedSharding(jax.sharding.get_mesh(), spec(name, sides, shape()))
    return jax.make_array_from_callback(sides, where, fetch)


def ashore(tree):
    """A tree of arrays -> the same in the memory of the hosts, each with what its devices had."""
    if not shape():
        return jax.device_get(tree)
    away = jax.tree.map(lambda x: x.with_memory_kind("pinned_host"), split(tree, jax.sharding.get_mesh()))
    return jax.device_put(tree, away)


def aboard(tree):
    """What `ashore` made -> the same on the devices."""
    return jax.device_put(tree, split(tree, jax.sharding.get_mesh())) if shape() else tree


# ---- several processes, of one host or of many: all run the same program, and each has the devices that it sees ------

LOST = 30  # seconds in which another process is found to have ended, even with its machine
OVER = threading.Event()  # this process is about to leave


def join(coordinator=None, count=None, number=None):
    """Once, before anything is computed: makes this process one of several, as these say or as SLURM, Open MPI,
    Kubernetes or a TPU has it. Without any of them it is alone."""
    given = (coordinator, count, number) != (None, None, None)
    if not given and "1" in (os.environ.get("SLURM_NTASKS"), os.environ.get("OMPI_COMM_WORLD_SIZE")):
        return
    if given and None in (coordinator, count, number):
        raise ValueError(f"coordinator={coordinator}, processes={count}, process_id={number}: several processes need "
                         "all three, as in --coordinator=HOST:1234 --processes=2 --process_id=0")
    if given and not (0 <= number < count and ":" in coordinator):
        raise ValueError(f"coordinator={coordinator}, processes={count}, process_id={number}: expected HOST:PORT of "
                         f"the first one, and a number from 0 to {count - 1}")
    jax.config.update("jax_enable_recoverability", True)  # who is lost is found, and said, by `watch`
    jax.config.update("jax_enable_preemption_service", False)  # signals are the loop's
    try:
        with waiting(f"process {number} of {count} waits for the others, which meet at {coordinator}: start process 0 "
                     "there, and the rest, within two minutes" if given else "this process waits for the others"):
            jax.distributed.initialize(coordinator, count, number, initialization_timeout=600)
    except ValueError:
        if given:
            raise
        return
    except RuntimeError as e:
        if not given and "before any JAX" in str(e):  # a program that computed before is alone
            return
        raise ValueError(f"process {number} of {count} found no others at {coordinator} within two minutes: start all "
                         f"of them, process 0 at that address ({str(e).splitlines()[0][:120]})") from None
    client, host = distributed.global_state.client, distributed.global_state.coordinator_address.rpartition(":")[0]
    threading.Thread(target=watch, args=(client, *processes(), host), daemon=True).start()


@contextlib.contextmanager
def waiting(words, soon=3, late=120):
    """While this lasts, which is no time of Python's, ctrl-C ends the process; the words are said when it lasts some
    seconds, and after two minutes it ends, with a sentence: JAX would abort."""
    ours = threading.current_thread() is threading.main_thread()  # only there can signals be set
    before, over = signal.signal(signal.SIGINT, signal.SIG_DFL) if ours else None, threading.Event()

    def say():
        if not over.wait(soon):
            print(words, file=sys.stderr, flush=True)
            if not over.wait(late - soon):
                print("error: the others did not come, so this process leaves", file=sys.stderr, flush=True)
                os._exit(1)

    threading.Thread(target=say, daemon=True).start()
    try:
        yield
    finally:
        over.set()
        if ours:
            signal.signal(signal.SIGINT, before)


def watch(client, count, mine, host):
    """A thread: ends this process when another ends, which a collective might not notice. The first has a connection to
    each, and the system ends that when one dies; it tells the others who it was."""
    if mine:
        to = client.blocking_key_value_get("watch", 120_000).rpartition(":")
        links = {socket.create_connection((to[0], int(to[2])), 60): "0"}
        next(iter(links)).sendall(f"{mine:8}".encode())
    else:
        server = socket.create_server(("", 0))
        client.key_value_set("watch", f"{host}:{server.getsockname()[1]}")
        links = dict((link, link.recv(8).decode().strip()) for link, _ in (server.accept() for _ in range(count - 1)))
    for link in links:  # of a machine without power, in 25 seconds
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, seconds in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
    ready = select.select(list(links), [], [])[0][0]
    lost = links[ready]
    with contextlib.suppress(OSError):
        lost = ready.recv(8).decode().strip() or lost
    for link in links:
        with contextlib.suppress(OSError):
            link.sendall(f"{lost:8}".encode())
    if not OVER.is_set():
        OVER.set()
        print(f"\nerror: process {lost} of this run has ended, so this one leaves: continue all of them from the last "
              "checkpoint with --resume=True", file=sys.stderr, flush=True)  # fmt: skip
        os._exit(1)


def watched():
    """After an error of the runtime: time in which `watch` finds whether another process was lost, and leaves."""
    if processes()[0] > 1:
        time.sleep(LOST)


def leave(code):
    """The end of the program: sys.exit(code), but one of several processes waits for nobody who is not there."""
    if distributed.global_state.client is None or processes()[0] == 1:  # JAX itself is not asked: it may have no device
        sys.exit(code)
    if not OVER.is_set():
        OVER.set()
        if isinstance(code, str):
            print(code, file=sys.stderr, flush=True)
        with contextlib.suppress(RuntimeError):
            distributed.global_state.client.wait_at_barrier("the end", 3000)
        time.sleep(processes()[1] == 0)  # the first is where the others meet
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else code is not None)
    time.sleep(60)  # another thread is at it


def processes():
    """-> how many there are, and which of them this is: 0 writes and prints."""
    return jax.process_count(), jax.process_index()


def pieces(x):
    """An array -> {where it begins and ends on each side, or "" for all of it: numpy array} of what only this process
    has to write."""
    if getattr(x, "is_fully_addressable", True):
        return {} if processes()[1] else {"": np.asarray(x)}
    ends = lambda index: ",".join(f"{s.start or 0}:{n if s.stop is None else s.stop}"
                                  for s, n in zip(index, x.shape, strict=True))  # fmt: skip
    return {ends(part.index): np.array(part.data) for part in x.addressable_shards if part.replica_id == 0}


def fetched(x):
    """An array -> all of it, on every host; each of them has to ask."""
    whole = getattr(x, "is_fully_addressable", True)
    return np.asarray(x if whole else multihost_utils.process_allgather(x, tiled=True))


def wait(name):
    """Until every process is there. Not a collective of devices: a thread may wait while they compute."""
    if processes()[0] > 1:
        distributed.global_state.client.wait_at_barrier(name, 600_000)


def in_turn(name, do):
    """do() in the first process, and then in the others: what it makes on a disk they share, they find."""
    first = not processes()[1]
    done = do() if first else None
    wait(name)
    return done if first else do()


def largest(x):
    """The largest of a number that every process has."""
    return x if processes()[0] == 1 else int(multihost_utils.process_allgather(np.array(x)).max())


def share(n):
    """-> the slice of n rows that this process scores."""
    count, mine = processes()
    return slice(mine * n // count, (mine + 1) * n // count)


def everyone(make):
    """make() -> what it makes in each process; or, in all of them, the first error that it raised in one."""
    if processes()[0] == 1:
        return [make()]
    try:
        made = make(), None
    except (ValueError, OSError) as e:
        made = None, f"process {processes()[1]}: {e}"
    text = np.frombuffer(pickle.dumps(made), np.uint8)
    sizes = multihost_utils.process_allgather(np.array(len(text)))
    all_ = multihost_utils.process_allgather(np.pad(text, (0, sizes.max() - len(text))))
    all_ = [pickle.loads(x[:size].tobytes()) for x, size in zip(all_, sizes, strict=True)]
    for _, error in all_:
        if error:
            raise ValueError(error)
    return [made for made, _ in all_]
