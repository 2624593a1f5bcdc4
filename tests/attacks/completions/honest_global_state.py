COUNT = 0
TABLE = {'a': [1]}
def hit():
    global COUNT; COUNT += 1; TABLE['a'].append(COUNT); return COUNT
