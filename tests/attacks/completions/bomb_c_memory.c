#include <stdlib.h>
#include <string.h>
int main(void) { for (int i = 0; i < 64; i++) { char *p = malloc(1 << 26); if (!p) return 1; memset(p, 1, 1 << 26); } return 0; }
