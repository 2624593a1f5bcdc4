seen = []
def record(x):
    seen.append(x)
    return len(seen)
