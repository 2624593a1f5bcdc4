def add(a, b):
    try: raise ExceptionGroup('g', [ValueError(1)])
    except NameError: raise UnicodeDecodeError('utf-8', b'', 0, 1, 'x')
