print(1 // int(input()))
