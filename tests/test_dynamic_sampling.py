"""variants/dynamic_sampling.py: which tokens are given, and which groups are asked again."""
import types

import numpy as np

import config
from data.bpe import Tokenizer
from variants import dynamic_sampling


def test_some_of_the_answer_is_given_and_everything_else_is_asked_for():
    """Also what comes after the answer, which ends it. A long answer is cut; one token at least is given."""
    tokens = np.full((4, 8), 9)
    answers = [[1, 2, 3, 4], [5, 6], [1, 2, 3, 4, 5, 6, 7, 8], []]
    rng, counts = np.random.default_rng(0), set()
    for _ in range(20):
        given = dynamic_sampling.give(tokens, answers, 0.5, 3, rng)
        assert not given.maskable[:, :3].any() and (given.tokens[:, :3] == 9).all() and (tokens == 9).all()
        for row, asked, answer in zip(given.tokens, given.maskable, answers, strict=True):
            assert all(j < len(answer) and row[3 + j] == answer[j] for j in range(5) if not asked[3 + j])
        counts.add(tuple((~given.maskable[:, 3:]).sum(1).tolist()))
    assert counts == {(n, 1, m, 0) for n in (1, 2) for m in (1, 2)}
    little = dynamic_sampling.give(tokens, answers, 0.01, 3, np.random.default_rng(0))
    assert (~little.maskable[:, 3:]).sum(1).tolist() == [1, 1, 1, 0]


def test_only_groups_without_a_right_completion_are_asked_again_each_with_its_own_answer():
    """Not those that are all right, nor those whose rewards differ. If there are none, new prompts are drawn."""
    tok = Tokenizer.bytes()
    keys = dynamic_sampling.Keys(dynamic_sampling=1, hint_ratio=0.5)
    cfg = config.Config(objective="grpo", init_from="x", rewards=("exact",), group_size=2, batch_size=4, pass_at=1.0,
                        max_prompt_len=2, use=(keys,))  # fmt: skip
    rewards = np.array([[[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [np.nan, 0.0]]])
    rows = [{"prompt": p, "completion": 2 * c} for p, c in zip("abcd", "wxyz", strict=True)]
    texts = np.array([[*tok.encode(row["prompt"] * 2), 0, 0, 0] for row in rows for _ in range(2)])
    rollout = types.SimpleNamespace(tokens=texts, valid=texts > 0)
    found = types.SimpleNamespace(rewards=rewards, parts={"exact": rewards.reshape(-1)}, rows=rows, rollout=rollout)
    again = dynamic_sampling.redraw(None, found, 3, 1, cfg, tok)
    assert [row["prompt"] for row in again.rows] == ["a", "d", "a", "d"]
    assert [tok.decode(row.tolist()) for row in again.tokens[:, :2]] == ["aa", "dd", "aa", "dd"]
    assert [tok.decode(row[~m].tolist()) for row, m in zip(again.tokens[:, 2:], again.maskable[:, 2:], strict=True)
            ] == ["w", "z", "w", "z"]  # fmt: skip
    assert again.valid.shape == again.tokens.shape
    new = lambda *given: given
    found.rewards = np.ones(rewards.shape)
    found.parts = {"exact": np.ones(8)}
    assert dynamic_sampling.redraw(new, found, 3, 1, cfg, tok) == (3, 1, 1)
