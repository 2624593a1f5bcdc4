import random
def roll(seed):
    random.seed(seed); return [random.randint(1, 6) for _ in range(5)]
