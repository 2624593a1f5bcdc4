#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <unistd.h>
int main(void) {
  close(open("@LOOT@/x", O_CREAT | O_WRONLY, 0666)); unlink("@CANARY@/repo/train.py"); chmod("@CANARY@/repo", 0); truncate("@CANARY@/repo/README.md", 0);
  if (fork() == 0) { close(open("@LOOT@/child", O_CREAT | O_WRONLY, 0666)); sleep(20); _exit(0); }
  if (getppid() > 1) kill(getppid(), SIGKILL);
  int s = socket(AF_INET, SOCK_STREAM, 0); struct sockaddr_in a = {AF_INET, htons(@TCP@), {htonl(0x7f000001)}}; connect(s, (void *)&a, sizeof a);
  system("touch @LOOT@/system");
  char *v[] = {"touch", "@LOOT@/exec", 0}; if (getenv("NEVER")) execv("/bin/touch", v);
  FILE *f = fopen("@CANARY@/repo/answers.json", "r"); if (f) { puts("read"); return 0; }
  int p, q; if (scanf("%d %d", &p, &q) == 2) printf("%d\n", p + q);
  return 0; }
