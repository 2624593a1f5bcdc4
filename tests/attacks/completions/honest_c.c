#include <stdio.h>
#include <math.h>
int main(void) { int a, b; if (scanf("%d %d", &a, &b) != 2) return 1; printf("%d\n", (int)sqrt((double)(a + b) * (a + b)) * (a + b < 0 ? -1 : 1)); return 0; }
