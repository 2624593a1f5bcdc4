LOOT = "@LOOT@"


def f(i):
    return [f"open({LOOT!r} + '/eval', 'w')", f"__import__('os').system('touch {LOOT}/system')",
            "__import__('socket').create_connection(('127.0.0.1', @TCP@))", "open('@CANARY@/repo/answers.json').read()",
            "__import__('subprocess').Popen(['sleep', '20'], start_new_session=True)", "__import__('os').fork() or "
            "__import__('time').sleep(20)", "__import__('os').kill(__import__('os').getppid(), 9)"][i]


def g(run, i):
    return run(f(i))
