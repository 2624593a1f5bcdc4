"""judges/sandbox/wire/peer.py: plain data arrives as it was, and a candidate may send any message at all."""

import socket
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judges.sandbox.tests import asserts
from judges.sandbox.wire import values
from judges.sandbox.wire.channel import MESSAGE, Dead
from judges.sandbox.wire.peer import READERS, Peer

atoms = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**80), 2**80), st.floats(allow_nan=False), st.text(max_size=9),
    st.binary(max_size=9), st.complex_numbers(allow_nan=False), st.fractions(), st.decimals(allow_nan=False),
    st.dates(), st.datetimes(), st.timedeltas())  # fmt: skip
keys = st.text(max_size=3) | st.integers()
plain = st.recursive(
    atoms, lambda x: st.one_of(st.lists(x, max_size=4), st.tuples(x, x), st.dictionaries(keys, x, max_size=4)),
    max_leaves=12)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(x=plain)
def test_plain_data_arrives_as_it_was(x):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        here, there = Peer(ours), Peer(theirs, {})
        there.send(there.pack(x))
        back = here.unpack(here.receive())
        assert back == x and repr(back) == repr(x)


words = st.sampled_from(["return", "raise", "names", "getattr", "loaded"])
tags = st.sampled_from([*READERS, *values.KINDS])
messages = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), words),
    lambda x: st.lists(x, max_size=4) | st.dictionaries(tags, x, max_size=2), max_leaves=20)  # fmt: skip
replies = messages | st.tuples(st.sampled_from(["return", "raise"]), messages, messages).map(list)


@settings(max_examples=150, deadline=None)
@given(sent=st.lists(replies, min_size=1, max_size=3))
def test_any_message_is_an_answer_a_failure_or_the_end(sent):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        there, here = Peer(theirs, {}), Peer(ours, limit=MESSAGE, deadline=time.monotonic() + 2)
        for message in sent:
            there.send(message)
        theirs.shutdown(socket.SHUT_WR)
        try:
            asserts.run_assert(here, "assert f([1], g=len) == 3", "f", {})
        except (Exception, Dead) as e:
            assert not isinstance(e, (OSError, MemoryError))


@pytest.mark.parametrize("value", [None, 3, [], {"type": "int"}, {"type": "ValueError"}, {"list": []}])
def test_an_answer_that_raises_no_exception_is_the_end(value):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        there, here = Peer(theirs, {}), Peer(ours, deadline=time.monotonic() + 2)
        there.send(["raise", value, []])
        with pytest.raises(Dead, match="bad answer"):
            here.ask("names", ["f"])
