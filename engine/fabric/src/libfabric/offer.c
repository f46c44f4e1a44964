/*
 * Receiving datagrams with what the kernel attaches to them. The macros that take that apart are the C library's.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Adds the descriptors of a control message to `count`; the last one stays open in `file`, those before it are closed. */
static void take_files(struct cmsghdr *head, int32_t *file, uint32_t *count)
{
	size_t at, size = head->cmsg_len - CMSG_LEN(0);
	int one;

	for (at = 0; at + sizeof one <= size; at += sizeof one) {
		memcpy(&one, CMSG_DATA(head) + at, sizeof one);
		if (*file >= 0)
			close(*file);
		*file = one;
		++*count;
	}
}

/*
 * Takes one datagram from a socket, without waiting, and returns its length, or the negative number of an error. `file` is
 * the caller's to close; it is -1 unless exactly one descriptor came: several, and what was cut short, are closed here.
 * `process` is the sender as this process's pid namespace counts it; 0: it can't be seen there, or the socket doesn't ask.
 */
int64_t weir_receive(int socket, void *bytes, uint64_t len, int32_t *file, uint32_t *process)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = { .iov_base = bytes, .iov_len = len };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof control };
	struct cmsghdr *head;
	struct ucred sender;
	uint32_t count = 0;
	ssize_t ret;

	*file = -1;
	*process = 0;
	ret = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (ret < 0)
		return -errno;
	for (head = CMSG_FIRSTHDR(&message); head; head = CMSG_NXTHDR(&message, head)) {
		if (head->cmsg_level != SOL_SOCKET)
			continue;
		if (head->cmsg_type == SCM_RIGHTS)
			take_files(head, file, &count);
		if (head->cmsg_type == SCM_CREDENTIALS && head->cmsg_len >= CMSG_LEN(sizeof sender)) {
			memcpy(&sender, CMSG_DATA(head), sizeof sender);
			*process = (uint32_t)sender.pid;
		}
	}
	/* Padding has room for a second one, which is not cut off. */
	if (*file >= 0 && (count != 1 || message.msg_flags & MSG_CTRUNC)) {
		close(*file);
		*file = -1;
	}
	return ret;
}
