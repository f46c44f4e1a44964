/* The process that holds a pod's namespaces: it sleeps, buries orphans when it is process 1 of a shared process
 * namespace, and ends at SIGINT or SIGTERM. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal)
{
	(void)signal;
	_exit(EXIT_SUCCESS);
}

static void bury(int signal)
{
	(void)signal;
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

int main(void)
{
	struct sigaction on_end = {.sa_handler = end};
	struct sigaction on_child = {.sa_handler = bury, .sa_flags = SA_NOCLDSTOP};

	if (sigaction(SIGINT, &on_end, NULL) < 0 || sigaction(SIGTERM, &on_end, NULL) < 0 ||
	    sigaction(SIGCHLD, &on_child, NULL) < 0)
		return EXIT_FAILURE;
	for (;;)
		pause();
}
