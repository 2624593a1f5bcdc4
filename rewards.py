"""
Rewards: what a completion is worth, judged by running it, by rules, by its group, by a model (judges/).

A reward is one plain function, and a new one is a line in the dict REWARDS or a function in a file of your own:

    fn(prompts, completions, **columns) -> list[float | None]      one entry per completion; None = no opinion

All reach it by parameter name, as lists aligned with the completions, so a reward of TRL's, fn(completions, **kwargs),
is one too, and so is one of a single text, fn(completion, **columns of its row). A parameter without a default is a
column it cannot do without. `reference` and `solution` are the completion that the row came with; a trainer may add
token_ids, which TRL calls completion_ids. completion[0]["content"] is the text of a completion (`Chat`). What a reward
hands to log_metric, and numbers that it hands to log_extra, are metrics, rewards/FN/NAME.

    python rewards.py out/code_grpo/samples.jsonl --rewards=tests,syntax --reward_weights=1,0.5 --out=scored.jsonl
    python rewards.py samples.jsonl --rewards="my_rewards.py:politeness,length(target=40)"
    python rewards.py code --rewards=tests --check      do the reference solutions of a data set score 1.0?
"""
from machine import terminal

if __name__ == "__main__":
    terminal.begin()

import argparse
import ast
import contextlib
import difflib
import functools
import importlib.util
import inspect
import json
import math
import os
import re
import sys
import traceback
from collections.abc import Mapping, Set

import numpy as np
from tqdm import tqdm

from judges import programs, rules
from judges.programs import sandbox


def empty(value):
    """None, blank text or an empty list: how a row says that it has no such column. Zero is a value."""
    return value is None or isinstance(value, str) and not value.strip() or isinstance(value, list) and not value


def per_text(rule, blank=0.0):
    """rule(text, columns of its row) -> a reward: None where a column without default is empty, and what blank text is
    worth, unless that is None: then it is for the rule to say, too."""
    _, *wanted = inspect.signature(rule).parameters.values()
    needed = [p.name for p in wanted if p.default is p.empty]

    def reward(prompts, completions, **columns):
        columns["prompt"] = prompts
        scores = []
        for i, text in enumerate(completions):
            row = {p.name: columns[p.name][i] for p in wanted if p.name in columns or p.name in needed}
            if any(empty(row[name]) for name in needed if name != "prompt"):
                scores.append(None)
            else:
                row = {name: value for name, value in row.items() if value is not None}
                scores.append(rule(text, **row) if text.strip() or blank is None else blank)
        return scores

    first = list(inspect.signature(reward).parameters.values())[:2]
    reward.__signature__ = inspect.Signature([*first, *(p for p in wanted if p.name != "prompt")])
    reward.__name__, reward.__doc__, reward.__wrapped__ = getattr(rule, "__name__", "reward"), rule.__doc__, rule
    reward.rule = rule
    return reward


class Message(str):
    """A character of a text that is a message of a chat, too: message["content"], message["role"]."""

    def __getitem__(self, at):
        return self.message[at] if isinstance(at, str) else super().__getitem__(at)

    def get(self, key, default=None):
        return self.message.get(key, default)


class Chat(str):
    """A text that is a list of chat messages, too, which is what TRL hands to rewards: text[0]["content"]."""

    def __getitem__(self, at):
        letter = super().__getitem__
        if not isinstance(at, int) or not -len(self.messages) <= at < len(self.messages):
            return letter(at)
        message = Message(letter(slice(at, at + 1 or None)))  # "" of an empty text
        message.message = self.messages[at]
        return message


def as_chats(texts, role, before=None):
    """Texts, the role that says them, the messages before each -> Chats."""
    chats = []
    for text, earlier in zip(texts, before or [None] * len(texts), strict=True):
        chats.append(Chat(text))
        chats[-1].messages = [*(earlier or []), {"role": role, "content": text}]
    return chats


# ---- by its group (by a model: judges/learned.py) --------------------------------------------------------------------

def diversity(prompts, completions, groups=None):
    """1 - the largest overlap (Jaccard, sets of 3-grams) with another completion of its group; 0.0 for a copy or blank.

    A group shares its value in the column `groups`, or its prompt; None where there is nobody to differ from."""
    grams = [frozenset(rules.ngrams(text, 3)) for text in completions]
    members = {}
    for i, group in enumerate(prompts if groups is None else groups):
        members.setdefault(group, []).append(i)
    scores = [None] * len(completions)
    for group in members.values():
        for i in group if len(group) > 1 else []:
            overlap = max(len(grams[i] & grams[j]) / max(1, len(grams[i] | grams[j])) for j in group if j != i)
            scores[i] = 1.0 - overlap if grams[i] else 0.0
    return scores


REWARDS = {
    "syntax": programs.syntax, "tests": programs.tests, "tests_all": programs.tests_all,
    "tests_fenced": programs.tests_fenced, "performance": programs.performance, "quality": programs.quality,
    "format": programs.quality, "fenced": programs.fenced, "diversity": diversity,
} | {name: per_text(rule) for name, rule in {
    "exact": rules.exact, "contains": rules.contains, "regex": rules.regex,
    "keywords": rules.keywords, "json": rules.valid_json, "xml": rules.valid_xml, "xml_tags": rules.xml_tags,
    "xml_soft": rules.xml_soft, "xml_strict": rules.xml_strict, "xml_int": rules.xml_int,
    "xml_answer": rules.xml_answer, "math": rules.math_answer, "countdown": rules.countdown, "sudoku": rules.sudoku,
    "sudoku_all": rules.sudoku_all, "length": rules.length, "overlong": rules.overlong,
    "repetition": rules.repetition, "reasoning": rules.reasoning, "safety": rules.safety}.items()}
SETTINGS = re.compile(r"(.*?)(?:\((\s*\w+\s*=.*)\))?", re.S)  # a name, and what may stand in parentheses behind it
FROM_MODELS = {"coherence": "a language model", "judge": "a judge"}  # what learned.load makes of such a folder


# ---- names, columns, weights ----------------------------------------------------------------------------------------

def load(path, name):
    """"file.py", "fn" -> that function; what is wrong with either is said in one sentence."""
    where = f"reward {path}:{name}:"
    if not (os.path.isfile(path) and path.endswith(".py")):
        raise ValueError(f"{where} there is no Python file {path!r}")
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as e:
        raise ValueError(f"{where} {path} cannot be imported: {type(e).__name__}: {e}") from e
    if not callable(getattr(module, name, None)):
        what = "is not a function" if hasattr(module, name) else "is not there"
        functions = [k for k, value in vars(module).items() if inspect.isfunction(value)]
        raise ValueError(f"{where} {name!r} {what}; the functions in {path} are {', '.join(functions) or 'none'}")
    return checked(where, name, getattr(module, name))


def checked(where, name, fn):
    """A function of somebody's -> the reward that it is; one of a `completion` (or `text`) and columns of its row is
    asked about each."""
    wanted = list(inspect.signature(fn).parameters.values()) if callable(fn) else []
    reward = None
    if any(p.name in ("completions", "completion_ids") or p.kind is p.VAR_KEYWORD for p in wanted):
        reward = functools.wraps(fn)(lambda *texts, **columns: fn(*texts, **columns))
    elif wanted and wanted[0].name in ("completion", "text"):
        reward = per_text(fn, None)
    if reward:
        reward.reads_chats = True
        return reward
    line = f" (line {fn.__code__.co_firstlineno})" if inspect.isfunction(fn) else ""
    raise ValueError(f"{where} it is {name}{inspect.signature(fn) if callable(fn) else f' = {fn!r}'}{line}; expected "
                     f"{name}(prompts, completions, **columns), lists by these names, of which only completions is a "
                     f"must, or {name}(completion), one text")


def having(name, fn, text):
    """A reward, "target=40" -> the reward with this parameter, of which the beginning will do, set for all rows."""
    rule = fn.rule if fn in REWARDS.values() and hasattr(fn, "rule") else fn  # of one text
    signature, given = inspect.signature(rule), {}
    free = {p.name: p.default for p in signature.parameters.values()
            if p.name not in ("text", "prompt", "prompts", "completions") and p.kind is not p.VAR_KEYWORD}
    for key, value in (map(str.strip, part.split("=", 1)) for part in re.split(r",\s*(?=\w+\s*=)", text)):
        near = [p for p in free if p == key] or [p for p in free if p.startswith(key)]
        if len(near) != 1:
            raise ValueError(f"the reward {name!r} has no setting {key!r}; there are {', '.join(free) or 'none'}")
        if near[0] in given:
            raise ValueError(f"the reward {name!r} is given {near[0]} twice")
        given[near[0]], number = value, isinstance(free[near[0]], (int, float))
        if number or rule is fn or value[:2] in ("['", '["'):  # elsewhere 5 is a text, as in regex(pattern=5)
            with contextlib.suppress(ValueError, SyntaxError):
                given[near[0]] = ast.literal_eval(value)
        if number and not isinstance(given[near[0]], (int, float)):
            raise ValueError(f"the reward {name!r}: {key}={value} should be a number, as in {key}={free[near[0]]}")
    bound = functools.update_wrapper(functools.partial(rule, **given), rule)
    bound.__signature__ = signature.replace(parameters=[p for k, p in signature.parameters.items() if k not in given])
    return bound if rule is fn else per_text(bound)


def resolve(names, **made):
    """"tests,my.py:fn" or ("tests", "length(target=40)") -> {name: fn}; `made` are from models, of learned.load."""
    known, fns = REWARDS | FROM_MODELS | made, {}
    for name in terminal.parts(names) if isinstance(names, str) else map(str.strip, names):
        name, settings = SETTINGS.fullmatch(name).groups()
        path, colon, short = name.rpartition(":")
        if not colon and name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"no reward {name!r}.{hint} There are {', '.join(known)}, and path/to/file.py:function")
        if short in fns:
            raise ValueError(f"two rewards are called {short!r} in {names!r}")
        if not colon and isinstance(known[name], str):  # it was not made
            raise ValueError(f"the reward {name!r}" + (
                f": what judge_from names makes {', '.join(made)} instead (a judge has a head of width 1, a language "
                "model has not)" if made else f" is made from a model: set judge_from to the folder of {known[name]}"))
        fns[short] = load(path, short) if colon else known[name]
        fns[short] = having(short, fns[short], settings) if settings else fns[short]
    return fns


def columns(rows):
    """Rows of a data set -> {name: list} for `combine`, None where a row has no such entry."""
    names = dict.fromkeys(name for row in rows for name in row if name != "prompt")
    return {name: [row.get(name) for row in rows] for name in names}


LOGS = "log_extra", "log_metric"  # functions that TRL hands to a reward, for what it wants to be logged


def arguments(name, fn, columns):
    """The columns (of `call`, with prompts and completions) that a reward takes, by its parameters; one that it needs
    and is not there is an error."""
    texts = ("prompts", "completions", *LOGS)
    if "completion" in columns:     # of a data set, it is the reference, and the answer where there is no other
        columns = {"reference": columns["completion"], "answer": columns["completion"], **columns}
    if "reference" in columns:
        columns = {"solution": columns["reference"], **columns}
    if "token_ids" in columns:
        columns = {"completion_ids": columns["token_ids"], **columns}
    taken = {}
    for p in inspect.signature(fn).parameters.values():
        if p.kind is p.VAR_KEYWORD:
            return columns
        if p.name in columns:
            taken[p.name] = columns[p.name]
        elif p.default is p.empty and p.name not in texts:
            there = ", ".join(column for column in columns if column not in texts)
            raise ValueError(f"reward {name!r} needs the column {p.name!r}; there are {there or 'none'}")
    return taken


def call(name, fn, prompts, completions, columns):
    """One reward on a batch -> its list, of the right length, finite or None; what is wrong is said with the row."""
    def row(i):
        return f"row {i} (prompt {prompts[i][:60]!r}, completion {completions[i][:60]!r})"

    def ask(rows):
        return fn(**{k: column[rows] for k, column in taken.items()}, **loggers)

    def fails(i):
        try:
            ask(slice(i, i + 1))
        except (Exception, SystemExit):
            return True

    def log_extra(column, values):
        values = np.array([math.nan if value is None else value for value in values])
        if values.shape == (len(completions),) and values.dtype.kind in "biuf":  # texts have no mean
            notes[column] = values

    def log_metric(metric, value):
        notes[metric] = [float(value)] * len(completions)

    texts = {"prompts": prompts, "completions": completions}
    if hasattr(fn, "reads_chats"):
        texts = {"prompts": as_chats(prompts, "user", columns.get("messages_before")),
                 "completions": as_chats(completions, "assistant")}  # fmt: skip
    taken, notes = arguments(name, fn, {**columns, **texts}), {}
    loggers = {log.__name__: log for log in (log_extra, log_metric) if log.__name__ in inspect.signature(fn).parameters}
    try:
        scores = ask(slice(None))
    except (Exception, SystemExit) as e:
        frames, file = traceback.extract_tb(e.__traceback__), getattr(inspect.unwrap(fn), "__code__", None)
        if isinstance(e, RuntimeError) and frames[-1].filename == inspect.getfile(programs.Sandbox):
            raise ValueError(f"reward {name!r}: {e}") from e    # the machine's failure: no completion is to blame
        at = next((f for f in reversed(frames) if file and f.filename == file.co_filename), frames[-1])
        culprit = next((row(i) for i in range(len(prompts)) if fails(i)), "the batch as a whole, no single row")
        what = f"{type(e).__name__}: {e} ({at.filename}:{at.lineno})"
        raise ValueError(f"reward {name!r} failed on {culprit}: {what}") from e
    listed = hasattr(scores, "__len__") and not isinstance(scores, (str, bytes, Mapping, Set))  # these have no order
    size = len(scores) if listed else f"a {type(scores).__name__}"
    if size != len(completions):
        raise ValueError(f"reward {name!r} returned {size}, not one entry for each of {len(completions)} completions")
    for i, value in enumerate(scores):
        try:
            good = value is None or math.isfinite(value)
        except TypeError:
            good = False
        if not good:
            raise ValueError(f"reward {name!r} returned {value!r} for {row(i)}: a finite number or None is needed")
    return programs.Scores(scores, **notes) if notes else scores


def combine(fns, weights, prompts, completions, columns, clip=None):
    """{name: fn}, weights -> total (n,), parts {name: (n,)}: the weighted sum over the rewards that have an opinion.

    None is nan in the parts, and in the total where no reward of a weight other than 0 has an opinion. Each reward is
    clipped to [-clip, clip] before it is weighed. What a reward notes besides is a part too, called NAME/NOTE."""
    weights = [1.0] * len(fns) if weights is None else list(weights)
    if len(weights) != len(fns):
        raise ValueError(f"{len(fns)} rewards ({', '.join(fns)}) but {len(weights)} reward_weights {weights}")
    for name, column in {"prompts": prompts, **columns}.items():
        if len(column) != len(completions):
            raise ValueError(f"the column {name!r} has {len(column)} entries for {len(completions)} completions")
    total, opinions, parts = np.zeros(len(completions)), np.zeros(len(completions), bool), {}
    for weight, (name, fn) in zip(weights, fns.items(), strict=True):
        scores = call(name, fn, prompts, completions, columns)
        part = np.array([math.nan if score is None else score for score in scores], float)
        parts[name] = part.clip(-clip, clip) if clip else part
        parts |= {f"{name}/{note}": np.array(values, float) for note, values in getattr(scores, "notes", {}).items()}
        total += np.nan_to_num(weight * parts[name])
        opinions |= ~np.isnan(part) & (weight != 0)
    return np.where(opinions, total, math.nan), parts


def mean(part):
    """Values, nan for no opinion -> the mean of the others, nan where there is none."""
    seen = part[~np.isnan(part)]
    return float(seen.mean()) if seen.size else math.nan


def pass_at(passed, k):
    """passed (N, n), does a completion of a prompt pass, 1 or 0, nan for no opinion -> the chance that one of k does,
    without bias: 1 - C(n - c, k) / C(n, k) where c of n pass (2107.03374), of prompts with k opinions or more."""
    known = [row[~np.isnan(row)] for row in passed]
    rates = [1 - math.comb(int((row == 0).sum()), k) / math.comb(len(row), k) for row in known if len(row) >= k]
    return float(np.mean(rates)) if rates else math.nan


def summary(parts):
    """Parts -> metrics: rewards/NAME/mean, /std, /min, /max, /none_frac, and the mean of each note, as in
    tests/timeout_frac."""
    metrics = {}
    for name, part in parts.items():
        seen = part[~np.isnan(part)]
        if "/" in name:
            metrics[f"rewards/{name}"] = mean(part)
            continue
        metrics[f"rewards/{name}/none_frac"] = 1.0 - len(seen) / max(1, len(part))
        if len(seen):
            metrics |= {f"rewards/{name}/{how}": float(getattr(seen, how)()) for how in ("mean", "std", "min", "max")}
    return metrics


# ---- as a program ---------------------------------------------------------------------------------------------------

def batches(rows, size=256):
    """Rows -> lists of row numbers, the rows of one prompt in one list: a group is judged together."""
    groups, batch = {}, []
    for i, row in enumerate(rows):
        groups.setdefault(row["prompt"], []).append(i)
    for group in groups.values():
        batch += group
        if len(batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch


def completed(rows, name):
    """Rows -> rows with a completion: one of a run's samples.jsonl is as many as it shows, with the columns it has."""
    out = []
    for i, row in enumerate(rows):
        shown = {how: row[how] for how in ("greedy", "sampled") if how in row}
        if "completion" in row:
            out.append(row)
        elif shown:
            known = {k: row[k] for k in ("step", "prompt") if k in row} | (row["columns"] if "columns" in row else {})
            out += [known | {"how": how, "groups": f"{i} {how}", "completion": text}
                    for how, texts in shown.items() for text in ([texts] if isinstance(texts, str) else texts)]
        else:
            raise ValueError(f"{name}: row {i} has no completion to score, only {', '.join(row)}")
    return out


def score(options):
    """Options of the command line -> exit code; the last line printed is a JSON object with n and the means."""
    import data
    path = data.find(options.data)
    if options.judge_from:
        from judges import learned
    fns = resolve(options.rewards, **(learned.load(options.judge_from) if options.judge_from else {}))
    unsafe = tuple(options.sandbox_unsafe.split(",")) if options.sandbox_unsafe else ()
    sandbox(workers=options.reward_workers, timeout=options.reward_timeout, unsafe=unsafe)
    rows = data.read_rows(path) if path.is_file() else [*data.load(path, "train"), *data.load(path, "val")]
    rows = completed(rows, options.data)
    for name, fn in fns.items():
        arguments(name, fn, columns(rows))
    if options.out and os.path.isfile(options.out):
        raise ValueError(f"--out={options.out} is there already, and nothing is overwritten: name a new file")
    os.makedirs(os.path.dirname(options.out or "") or ".", exist_ok=True)
    table = {name: np.full(len(rows), math.nan) for name in [*fns, "reward"]}
    plain = lambda x: None if math.isnan(x) else round(float(x), 6)
    scored, written = np.zeros(len(rows), bool), 0
    bar = tqdm(total=len(rows), unit="row", disable=None)  # none without a terminal
    with bar, open(options.out or os.devnull, "w", encoding="utf-8") as file:
        for batch in batches(rows):
            chosen = [rows[i] for i in batch]
            given = columns(chosen)
            texts = given["completion"] if options.check else given.pop("completion")
            total, parts = combine(fns, options.reward_weights, [row["prompt"] for row in chosen], texts, given)
            for name, column in table.items():
                column[batch] = total if name == "reward" else parts[name]
            scored[batch] = True
            bar.update(len(batch))
            while written < len(rows) and scored[written]:      # in the order of the rows, as far as all are scored
                of = {name: plain(column[written]) for name, column in table.items()}
                line = rows[written] | {"rewards": {name: of[name] for name in fns}, "reward": of["reward"]}
                file.write(json.dumps(line) + "\n")
                written += 1
            file.flush()
    wrong = [i for i in range(len(rows)) if options.check and any(table[name][i] != 1.0 for name in fns)]
    for i in wrong:
        scores = ", ".join(f"{name} {plain(table[name][i])}" for name in fns)
        print(f"row {i} is not 1.0: {scores}; prompt {rows[i]['prompt'][:60]!r}")
    print(json.dumps({"n": len(rows)} | {name: plain(mean(x)) for name, x in table.items()}))
    return 1 if wrong else 0


def numbers(text):
    return [float(number) for number in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="rewards: " + ", ".join(REWARDS | FROM_MODELS), allow_abbrev=False)
    parser.add_argument("data", help='rows {"prompt", "completion", ...} in .jsonl or .json, samples.jsonl of a run, '
                                     "or the name of a data set")
    parser.add_argument("--rewards", required=True, help="names, or path/to/file.py:function, with commas; "
                        "NAME(key=value) sets a parameter")
    parser.add_argument("--reward_weights", type=numbers, help="a number for each, with commas (default: 1)")
    parser.add_argument("--reward_timeout", type=float, default=5.0, help="CPU seconds for a completion (default: 5)")
    parser.add_argument("--reward_workers", type=int, help="programs at a time (default: six per core, at most 64)")
    parser.add_argument("--sandbox_unsafe", help="what need not be contained on this machine, for example: read,memory")
    parser.add_argument("--judge_from", help="folder of a judge (reward judge) or of a model (coherence)")
    parser.add_argument("--out", help="write the rows with their rewards to this .jsonl file")
    parser.add_argument("--check", action="store_true", help="fail unless every completion, as a reference, scores 1.0")
    try:
        return score(parser.parse_args(terminal.once(sys.argv[1:])))
    except BrokenPipeError:
        raise
    except (ValueError, OSError, RuntimeError) as e:
        print(f"rewards.py: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    terminal.run(main)
