/*
 * What the kernel knows of TCP connections. Its structure grows from release to release.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <sys/socket.h>

/* Of a TCP connection: see sys.rs. */
struct weir_progress {
	uint32_t retransmits;
	uint32_t unacked;
	uint32_t silence_ms;
	uint32_t probes;
	uint32_t quiet_ms;
};

/* What the kernel knows of the progress of a connection. */
int64_t weir_tcp_progress(int fd, struct weir_progress *progress)
{
	struct tcp_info info = { 0 };
	socklen_t len = sizeof info;

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len))
		return -errno;
	progress->retransmits = info.tcpi_retransmits;
	progress->unacked = info.tcpi_unacked;
	progress->silence_ms = info.tcpi_last_ack_recv;
	progress->probes = info.tcpi_probes;
	progress->quiet_ms = info.tcpi_last_data_recv;
	return 0;
}
