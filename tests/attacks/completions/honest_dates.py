from datetime import date, datetime, timedelta, timezone
def add_days(d, n): return d + timedelta(days=n)
def when(): return datetime(2020, 2, 29, 1, 2, 3, tzinfo=timezone.utc)
def gap(a, b): return b - a
