"""What `from config import Config` finds when a config file is run by itself, with its own folder first on the path."""
import sys

raise SystemExit(f"a config file is no program: python train.py {sys.argv[0]}")
