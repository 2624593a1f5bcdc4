import time
while True:
    try: input()
    except EOFError: time.sleep(0.1)
