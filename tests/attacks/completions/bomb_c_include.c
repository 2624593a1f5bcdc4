#include "@CANARY@/repo/answers.json"
#include "/dev/urandom"
int main(void) { return 0; }
