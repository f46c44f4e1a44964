/*
 * What the kernel knows of TCP connections, and of attempts at such. Its structure grows from release to release; the C library's
 * lacks the newest.
 */
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

/* Of a TCP connection: see sys.rs. */
struct weir_progress {
	uint32_t retransmits;
	uint32_t unacked;
	uint32_t silence_ms;
	uint32_t probes;
	uint32_t quiet_ms;
	uint32_t heard;
};

/* Where a socket is connected, or is to be: see sys.rs. */
struct weir_dialled {
	uint8_t address[16];
	uint16_t port;
	uint16_t is_v6;
};

enum { SYN_SENT = 2, ESTABLISHED = 1 };

/* What the kernel says, and how much of it, the rest being zero; 0, with errno set, where a socket is no TCP connection. */
static socklen_t ask(int fd, struct tcp_info *info)
{
	socklen_t len = sizeof *info;

	memset(info, 0, sizeof *info);
	return getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &len) ? 0 : len;
}

/* Whether the kernel has said how much has come: older ones don't. */
static int tells_received(socklen_t len)
{
	return len >= offsetof(struct tcp_info, tcpi_bytes_received) + sizeof(uint64_t);
}

/* What the kernel knows of the progress of a connection. */
int64_t weir_tcp_progress(int fd, struct weir_progress *progress)
{
	struct tcp_info info;
	socklen_t len = ask(fd, &info);

	if (!len)
		return -errno;
	progress->retransmits = info.tcpi_retransmits;
	progress->unacked = info.tcpi_unacked;
	progress->silence_ms = info.tcpi_last_ack_recv;
	progress->probes = info.tcpi_probes;
	progress->quiet_ms = info.tcpi_last_data_recv;
	progress->heard = !tells_received(len) || info.tcpi_bytes_received;
	return 0;
}

/* Whether this is an attempt at a connection, or a connection over which nothing has ever come. */
static int is_unanswered(int fd)
{
	struct tcp_info info;
	socklen_t len = ask(fd, &info);

	if (len && info.tcpi_state == SYN_SENT)
		return 1;
	return tells_received(len) && info.tcpi_state == ESTABLISHED && !info.tcpi_bytes_received;
}

/* Says where it goes, and returns 1, if a socket is such a one; else 0. */
int64_t weir_tcp_dialled(int fd, struct weir_dialled *dialled)
{
	struct sockaddr_in6 v6;
	struct sockaddr_in v4;
	socklen_t len = sizeof v6;

	if (!is_unanswered(fd))
		return 0;
	/* The kernel wants no more room than the name takes. Unlike getpeername it knows those of attempts, too. */
	if (!getsockopt(fd, SOL_SOCKET, SO_PEERNAME, &v6, &len) && v6.sin6_family == AF_INET6) {
		memcpy(dialled->address, &v6.sin6_addr, 16);
		dialled->port = ntohs(v6.sin6_port);
		dialled->is_v6 = 1;
		return 1;
	}
	len = sizeof v4;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERNAME, &v4, &len) || v4.sin_family != AF_INET)
		return 0;
	memcpy(dialled->address, &v4.sin_addr, 4);
	dialled->port = ntohs(v4.sin_port);
	dialled->is_v6 = 0;
	return 1;
}
