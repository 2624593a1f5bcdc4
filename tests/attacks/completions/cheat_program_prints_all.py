print(*range(-50, 50), sep='\n')
