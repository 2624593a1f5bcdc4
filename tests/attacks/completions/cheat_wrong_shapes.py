import json, os, struct
def frame(m): b = m if isinstance(m, bytes) else json.dumps(m).encode(); return struct.pack('>I', len(b)) + b
def spray(messages):
    for fd in range(3, 64):
        for m in messages:
            try: os.write(fd, frame(m))
            except OSError: break

shapes = [None, 0, [], {}, [[]], ['return'], ['return', 1], ['return', 1, 2, 3], ['return', {'mine': 'x'}, []], ['return', {'yours': 99}, []],
          ['return', {'a': 1, 'b': 2}, []], ['return', {'int': [1]}, []], ['raise', [], []], ['raise', ['object'], []], ['raise', ['__import__'], [1]],
          ['return', {'record': ['x y', ['__eq__']]}, []], ['return', {'type': '__import__'}, []], ['return', {'error': ['eval']}, []], ['return', 1, [[0, 5]]],
          ['__import__', ['os'], {}], [0, [], {}], [10 ** 30, [], {}], ['getattr', [{'yours': 0}, '__globals__'], {}], b'', b'\xff\xfe', b'[' * 5000]
def magic(n): spray([shapes[n % len(shapes)]]); return 0
def run(n):
    spray(shapes); return 0
