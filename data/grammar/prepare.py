"""
Make couplets from a small grammar: text of so little entropy that a model of 1M parameters learns it in minutes on a
CPU, with three kinds of rules that one wrong word breaks. Rows have no prompt:

    {"prompt": "", "completion": "two bakers sing at the pot,\\nthey need the honey on the spot.", "difficulty": 1}

agreement   determiner, noun, both verbs and the pronoun are singular, or all are plural: this cow rests, it likes
topic       nouns, adjective, place and thing belong together: no cows on a throne, no corn at school
rhyme       the two lines end in two words that rhyme

`faults` knows the rules; training never uses it. Couplets of difficulty 1 are the shortest, those of difficulty 2 have
an adjective, those of difficulty 3 also a second noun between the subject and its verb, which can differ in number. The
split is by content: a tenth of all combinations of subject, thing, place and ending (`held_out`) never occurs in train.
There are 325 words; a couplet has 50 to 99 characters, or 15 to 22 tokens. Every word is one token of the BPE in
tokenizer.tiktoken, which has 892 ids. There are 24,000 train and 1,200 val rows, a third of each difficulty, made in 1
second.

    python data/grammar/prepare.py
"""
import random
import re
import sys
import zlib
from pathlib import Path

TOPICS = {  # who, how, what, where
    "farm": ("cow pig hen goat lamb horse", "brown muddy woolly fat", "corn straw grass oats milk",
             "in the hay,at the gate,by the well,on the hill"),
    "sea": ("crab shark whale seal gull sailor", "wet salty blue slippery", "shells foam pearls herring weed",
            "in the bay,on the sand,in the deep,on the reef"),
    "forest": ("fox owl bear stag squirrel badger", "shy wild furry grey", "nuts moss berries leaves acorns",
               "under a tree,in the dark,on the ground,by the brook"),
    "school": ("pupil teacher girl boy reader writer", "clever busy noisy curious", "books chalk maps poems sums",
               "in the hall,on the floor,at the board,by the bell"),
    "castle": ("king queen knight guard prince jester", "noble proud brave royal", "gold crown sword banner armour",
               "by the fire,on the throne,at the feast,in the tower"),
    "kitchen": ("cook baker maid waiter guest chef", "hungry greasy warm round", "bread soup cheese honey cake",
                "by the plate,at the pot,by the tray,under the sink"),
    "garden": ("bee snail ant worm spider beetle", "tiny green striped slow", "roses seeds petals clover buds",
               "by the wall,in the shade,on the stone,in the wheat"),
    "sky": ("bird kite cloud pilot comet eagle", "bright high light swift", "wind air storm rain dawn",
            "in the sky,over the town,under the sun,in the light"),
}
RHYMES = {  # the last word of a place -> how the second line may end
    "hay bay tray": "all day,far away,in may", "gate plate": "very late,until eight",
    "well bell": "for a spell,by smell",
    "hill": "with a will,in the chill", "sand": "close at hand,as planned", "deep": "half asleep,without a peep",
    "reef": "beyond belief,for a time too brief", "tree": "with glee,until three", "dark": "for a lark,with a spark",
    "ground": "all around,without a sound", "brook": "with one look,by hook or crook",
    "hall wall": "one and all,in the fall", "floor": "more and more,as before", "board": "as a reward,of one accord",
    "fire": "with desire,higher and higher", "throne stone": "all alone,as is well known",
    "feast": "at least,like a beast", "tower": "for an hour,after a shower", "pot": "quite a lot,on the spot",
    "sink": "in a blink,more than you think", "shade": "unafraid,on parade",
    "wheat": "in the heat,as a treat", "sky": "by and by,way up high", "town": "upside down,up and down",
    "sun": "just for fun,one by one", "light": "day and night,with delight",
}
ANY, ONE, MANY = "the", "this that one each", "these those two some"
STAND, WANT = "stand sit rest wait hide stay play sing", "see like want find love need seek hold"
ROWS, VAL_ROWS = 8000, 400  # of each difficulty
VOCAB = 1024  # enough for every word to be one token

# For the rules: topics of words and places, numbers of words (1, 2 or 0 for any), rhymes of endings.
def part(i, cut):
    return {word: topic for topic, parts in TOPICS.items() for word in parts[i].split(cut)}
WHO, HOW, WHAT, WHERE = part(0, " "), part(1, " "), part(2, " "), part(3, ",")
NOUNS = {noun + s: 1 + len(s) for noun in WHO for s in ("", "s")}
STANDS, WANTS = ({stem + s: 2 - len(s) for stem in stems.split() for s in ("s", "")} for stems in (STAND, WANT))
DETERMINERS = {word: number for number, words in enumerate((ANY, ONE, MANY)) for word in words.split()}
PRONOUNS = {"it": 1, "they": 2}
ENDINGS = {ending: words.split() for words, endings in RHYMES.items() for ending in endings.split(",")}

def one_of(name, words):
    return f"(?P<{name}>{'|'.join(words)})"
FORM = re.compile(
    f"{one_of('determiner', DETERMINERS)} ({one_of('how', HOW)} )?{one_of('who', NOUNS)} "
    f"(near the {one_of('other', NOUNS)} )?{one_of('stands', STANDS)} {one_of('where', WHERE)},\n"
    f"{one_of('pronoun', PRONOUNS)} {one_of('wants', WANTS)} the {one_of('what', WHAT)} {one_of('ending', ENDINGS)}\\.")


def faults(text):
    """Find the rules that a text breaks, a subset of {"agreement", "topic", "rhyme"}; {"form"} if it is no couplet."""
    if not (match := FORM.fullmatch(text)):
        return {"form"}
    word = match.groupdict()
    def stem(noun):
        return noun and noun[:len(noun) + 1 - NOUNS[noun]]
    numbers = {DETERMINERS[word["determiner"]], NOUNS[word["who"]], STANDS[word["stands"]],
               PRONOUNS[word["pronoun"]], WANTS[word["wants"]]} - {0}
    topics = {WHO[stem(word["who"])], WHO.get(stem(word["other"])), HOW.get(word["how"]),
              WHAT[word["what"]], WHERE[word["where"]]} - {None}
    broken = {"agreement": len(numbers) > 1, "topic": len(topics) > 1,
              "rhyme": word["where"].split()[-1] not in ENDINGS[word["ending"]]}
    return {rule for rule, is_broken in broken.items() if is_broken}


def grammatical(prompts, completions):
    """Reward texts that obey every rule with 1.0, others with 0.0 (--rewards=data/grammar/prepare.py:grammatical)."""
    return [float(not faults(prompt + completion)) for prompt, completion in zip(prompts, completions, strict=True)]


def held_out(*content):
    """True if this combination of subject, thing, place and ending is for val."""
    return zlib.crc32(" ".join(content).encode()) % 10 == 0


def couplet(rng, difficulty):
    """Make a text of this difficulty that obeys every rule, and its content."""
    parts = TOPICS[rng.choice(list(TOPICS))]
    who, how, what, where = (words.split(cut) for words, cut in zip(parts, "   ,", strict=True))
    number = rng.choice((1, 2))
    def pick(table):
        return rng.choice([word for word, n in table.items() if n in (0, number)])
    subject, other = rng.sample(who, 2)
    thing, place = rng.choice(what), rng.choice(where)
    ending = rng.choice([ending for ending, words in ENDINGS.items() if place.split()[-1] in words])
    adjective = rng.choice(how) + " " if difficulty > 1 else ""
    between = f"near the {other}{rng.choice(('', 's'))} " if difficulty > 2 else ""
    text = (f"{pick(DETERMINERS)} {adjective}{subject}{'s' * (number - 1)} {between}{pick(STANDS)} {place},\n"
            f"{pick(PRONOUNS)} {pick(WANTS)} the {thing} {ending}.")
    return text, (subject, thing, place, ending)


def build():
    """Make {"train": rows, "val": rows}, no text twice."""
    rng, splits, seen = random.Random(0), {"train": [], "val": []}, set()
    for difficulty in (1, 2, 3):
        wanted = {"train": ROWS, "val": VAL_ROWS}
        while any(wanted.values()):
            text, content = couplet(rng, difficulty)
            split = "val" if held_out(*content) else "train"
            if wanted[split] and text not in seen:
                seen.add(text)
                splits[split].append({"prompt": "", "completion": text, "difficulty": difficulty})
                wanted[split] -= 1
    for rows in splits.values():
        rng.shuffle(rows)
    return splits


def main():
    splits = build()
    tokenizer = learn.tokenizer((row["completion"] for row in splits["train"]), VOCAB)
    making.save(Path(__file__).parent, splits, tokenizer.vocab)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from data import learn, making
    main()
