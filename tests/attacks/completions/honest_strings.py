def shout(s): return s.upper() + '!'
def rows(): return 'a\tb\r\nc\x00d\\"'
def code(s): return s.encode('utf-8'), s[::-1]
