Sure! Here is the function you asked for:

    add = lambda a, b: a + b

I hope this helps.
