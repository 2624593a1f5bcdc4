import math, re, itertools, heapq, bisect, string, random
from collections import Counter, defaultdict, deque, OrderedDict
from datetime import date
from typing import List, Optional
def words(s: str) -> List[str]:
    random.seed(0); q = deque(re.findall(r"[a-z]+", s.lower())); c = Counter(q); h = list(c.items()); heapq.heapify(h)
    assert math.gcd(4, 6) == 2 and list(itertools.chain([1], [2])) == [1, 2] and bisect.bisect([1, 3], 2) == 1 and date(2020, 1, 1).year == 2020 and string.digits
    return sorted(c, key=lambda w: (-c[w], w))
