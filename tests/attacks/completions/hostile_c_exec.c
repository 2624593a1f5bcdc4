#include <unistd.h>
int main(void) { char *v[] = {"touch", "@LOOT@/exec", 0}; return execv("/usr/bin/touch", v); }
