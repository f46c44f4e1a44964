/* SPDX-License-Identifier: Apache-2.0 */
/* File systems, used as fio's engine and ROMIO use them, and by paths. */
#include <errno.h>
#include <fcntl.h>
#include <sys/xattr.h>

#include <daos_fs.h>
#include <daos_fs_sys.h>
#include <daos_uns.h>

#include "check.h"

#define BLOCK 65536
#define FILES 300

static void
list_of(d_sg_list_t *sgl, d_iov_t *iov, void *buf, size_t len)
{
	d_iov_set(iov, buf, len);
	*sgl = (d_sg_list_t){.sg_nr = 1, .sg_iovs = iov};
}

/* As fio: files that are made, written and read by events of a queue, several at once. */
static void
as_fio(dfs_t *dfs)
{
	enum { DEPTH = 4 };
	dfs_obj_t *file;
	daos_handle_t eq;
	daos_event_t evs[DEPTH], *done[DEPTH];
	d_sg_list_t sgls[DEPTH];
	d_iov_t iovs[DEPTH];
	daos_size_t sizes[DEPTH], size;
	static char data[DEPTH][BLOCK], found[DEPTH][BLOCK];
	struct stat st;

	OK(daos_eq_create(&eq));
	OK(dfs_open(dfs, NULL, "job.0.0", S_IFREG | S_IRUSR | S_IWUSR, O_RDWR | O_CREAT, 0, 0, NULL, &file));
	for (int i = 0; i < DEPTH; i++) {
		memset(data[i], 'a' + i, BLOCK);
		list_of(&sgls[i], &iovs[i], data[i], BLOCK);
		OK(daos_event_init(&evs[i], eq, NULL));
		OK(dfs_write(dfs, file, &sgls[i], (daos_off_t)i * BLOCK, &evs[i]));
	}
	for (int left = DEPTH; left > 0;) {
		int got = daos_eq_poll(eq, 0, DAOS_EQ_WAIT, DEPTH, done);

		CHECK(got > 0);
		left -= got;
		for (int i = 0; i < got; i++)
			CHECK(done[i]->ev_error == 0);
	}
	OK(dfs_get_size(dfs, file, &size));
	CHECK(size == DEPTH * BLOCK);
	for (int i = 0; i < DEPTH; i++) {
		list_of(&sgls[i], &iovs[i], found[i], BLOCK);
		/* The last one reads behind the end. */
		OK(dfs_read(dfs, file, &sgls[i], (daos_off_t)i * BLOCK + (i == DEPTH - 1 ? 100 : 0), &sizes[i], &evs[i]));
	}
	for (int left = DEPTH; left > 0;)
		left -= daos_eq_poll(eq, 0, DAOS_EQ_WAIT, DEPTH, done);
	for (int i = 0; i < DEPTH; i++) {
		CHECK(evs[i].ev_error == 0);
		CHECK(sizes[i] == (i == DEPTH - 1 ? BLOCK - 100 : BLOCK));
		CHECK(memcmp(found[i], data[i], sizes[i]) == 0);
		OK(daos_event_fini(&evs[i]));
	}
	OK(dfs_stat(dfs, NULL, "job.0.0", &st));
	CHECK(st.st_size == DEPTH * BLOCK && S_ISREG(st.st_mode) && (st.st_mode & 07777) == 0600);
	OK(dfs_release(file));
	CHECK_RC(dfs_release(file), EINVAL);
	OK(dfs_remove(dfs, NULL, "job.0.0", false, NULL));
	CHECK_RC(dfs_stat(dfs, NULL, "job.0.0", &st), ENOENT);
	OK(daos_eq_destroy(eq, 0));
}

/* As ROMIO: one process creates, others open what they are told; ranges are written and read at once. */
static void
as_romio(daos_handle_t poh, daos_handle_t coh, dfs_t *dfs)
{
	dfs_obj_t *dir, *file, *other;
	dfs_t *second;
	d_iov_t glob = {0}, glob_obj = {0}, iov;
	daos_range_t ranges[2] = {{.rg_idx = 10, .rg_len = 5}, {.rg_idx = 3 << 20, .rg_len = 5}};
	dfs_iod_t iod = {.iod_nr = 2, .iod_rgs = ranges};
	d_sg_list_t sgl;
	char data[] = "0123456789", found[10];
	daos_size_t size;
	daos_handle_t array;

	OK(dfs_mkdir(dfs, NULL, "mpi", 0755, 0));
	CHECK_RC(dfs_mkdir(dfs, NULL, "mpi", 0755, 0), EEXIST);
	OK(dfs_lookup(dfs, "/mpi", O_RDWR, &dir, NULL, NULL));
	OK(dfs_open(dfs, dir, "file", S_IFREG | 0644, O_RDWR | O_CREAT | O_EXCL, OC_S1, 1 << 16, NULL, &file));
	CHECK_RC(dfs_open(dfs, dir, "file", S_IFREG | 0644, O_RDWR | O_CREAT | O_EXCL, 0, 0, NULL, &other), EEXIST);
	OK(dfs_get_chunk_size(file, &size));
	CHECK(size == 1 << 16);
	list_of(&sgl, &iov, data, 10);
	OK(dfs_writex(dfs, file, &iod, &sgl, NULL));

	/* To another process, which is this one. */
	OK(dfs_local2global(dfs, &glob));
	glob.iov_buf = malloc(glob.iov_buf_len);
	OK(dfs_local2global(dfs, &glob));
	OK(dfs_global2local(poh, coh, 0, glob, &second));
	OK(dfs_obj_local2global(dfs, file, &glob_obj));
	glob_obj.iov_buf = malloc(glob_obj.iov_buf_len);
	OK(dfs_obj_local2global(dfs, file, &glob_obj));
	OK(dfs_obj_global2local(second, 0, glob_obj, &other));
	CHECK_RC(dfs_obj_global2local(second, 0, glob, &other), EINVAL);
	list_of(&sgl, &iov, found, 10);
	OK(dfs_readx(second, other, &iod, &sgl, &size, NULL));
	CHECK(size == 10 && memcmp(found, data, 10) == 0);
	iod.iod_nr = 1;
	CHECK_RC(dfs_readx(second, other, &iod, &sgl, &size, NULL), EINVAL);
	OK(dfs_get_size(second, other, &size));
	CHECK(size == (3 << 20) + 5);
	OK(dfs_get_file_oh(other, &array));
	OK(daos_array_close(array, NULL));
	OK(dfs_punch(second, other, 12, DFS_MAX_FSIZE));
	OK(dfs_get_size(dfs, file, &size));
	CHECK(size == 12);
	OK(dfs_punch(dfs, file, 100, 5));
	OK(dfs_get_size(dfs, file, &size));
	CHECK(size == 100);
	OK(dfs_release(other));
	OK(dfs_release(file));
	OK(dfs_umount(second));
	free(glob.iov_buf);
	free(glob_obj.iov_buf);
	OK(dfs_release(dir));
}

static int
count_names(dfs_t *dfs, dfs_obj_t *obj, const char name[], void *arg)
{
	(void)dfs;
	(void)obj;
	CHECK(name[0] == 'f');
	return ++*(int *)arg == 150 ? EINTR : 0;
}

static void
listings(dfs_t *dfs)
{
	dfs_obj_t *dir, *file;
	daos_anchor_t anchor = {0};
	struct dirent names[64];
	struct stat stats[64];
	dfs_pipeline_t *filter;
	dfs_predicate_t pred = {.dp_name = "f%7"};
	uint64_t scanned;
	uint32_t nr;
	int total = 0;

	OK(dfs_open(dfs, NULL, "many", S_IFDIR | 0755, O_RDWR | O_CREAT, 0, 0, NULL, &dir));
	for (int i = 0; i < FILES; i++) {
		char name[16];

		snprintf(name, sizeof(name), "f%d", i);
		OK(dfs_open(dfs, dir, name, S_IFREG | 0600, O_RDWR | O_CREAT, 0, 0, NULL, &file));
		OK(dfs_release(file));
	}
	while (!daos_anchor_is_eof(&anchor)) {
		nr = 64;
		OK(dfs_readdirplus(dfs, dir, &anchor, &nr, names, stats));
		for (uint32_t i = 0; i < nr; i++)
			CHECK(names[i].d_type == DT_REG && S_ISREG(stats[i].st_mode) && stats[i].st_size == 0);
		total += (int)nr;
	}
	CHECK(total == FILES);
	memset(&anchor, 0, sizeof(anchor));
	nr = FILES;
	total = 0;
	CHECK_RC(dfs_iterate(dfs, dir, &anchor, &nr, FILES * 256, count_names, &total), EINTR);
	CHECK(total == 150 && nr == 150);
	while (!daos_anchor_is_eof(&anchor)) {
		nr = 64;
		OK(dfs_readdir(dfs, dir, &anchor, &nr, names));
		total += (int)nr;
	}
	CHECK(total == FILES);
	memset(&anchor, 0, sizeof(anchor));
	OK(dfs_pipeline_create(dfs, pred, DFS_FILTER_NAME, &filter));
	for (total = 0; !daos_anchor_is_eof(&anchor); total += (int)nr) {
		nr = 64;
		OK(dfs_readdir_with_filter(dfs, dir, filter, &anchor, &nr, names, NULL, NULL, &scanned));
	}
	CHECK(total == FILES / 10);
	OK(dfs_pipeline_destroy(filter));
	nr = 8;
	OK(dfs_obj_anchor_split(dir, &nr, NULL));
	CHECK(nr == 1);
	CHECK_RC(dfs_remove(dfs, NULL, "many", false, NULL), ENOTEMPTY);
	OK(dfs_release(dir));
	OK(dfs_remove(dfs, NULL, "many", true, NULL));
}

static void
names_and_attributes(dfs_t *dfs)
{
	dfs_obj_t *file, *link;
	struct stat st;
	mode_t mode;
	char text[64];
	daos_size_t size;
	daos_obj_id_t oid, gone;

	OK(dfs_open(dfs, NULL, "a", S_IFREG | 0640, O_RDWR | O_CREAT, 0, 0, NULL, &file));
	OK(dfs_obj2id(file, &oid));
	OK(dfs_open(dfs, NULL, "l", S_IFLNK | 0777, O_RDWR | O_CREAT | O_EXCL, 0, 0, "mpi/../a", &link));
	size = sizeof(text);
	OK(dfs_get_symlink_value(link, text, &size));
	CHECK(size == 9 && strcmp(text, "mpi/../a") == 0);
	OK(dfs_release(link));
	OK(dfs_lookup_rel(dfs, NULL, "l", O_RDONLY, &link, &mode, &st));
	CHECK(S_ISREG(mode) && S_ISREG(st.st_mode));
	OK(dfs_release(link));
	OK(dfs_lookup(dfs, "/l", O_RDONLY | O_NOFOLLOW, &link, &mode, NULL));
	CHECK(S_ISLNK(mode));
	OK(dfs_release(link));
	OK(dfs_chmod(dfs, NULL, "l", 0400));
	OK(dfs_stat(dfs, NULL, "a", &st));
	CHECK((st.st_mode & 07777) == 0400);
	OK(dfs_access(dfs, NULL, "a", R_OK));

	st.st_size = 77;
	st.st_mtim = (struct timespec){.tv_sec = 1000, .tv_nsec = 5};
	OK(dfs_osetattr(dfs, file, &st, DFS_SET_ATTR_SIZE | DFS_SET_ATTR_MTIME));
	OK(dfs_ostat(dfs, file, &st));
	CHECK(st.st_size == 77 && st.st_mtim.tv_sec == 1000 && st.st_mtim.tv_nsec == 5);

	OK(dfs_setxattr(dfs, file, "user.x", "value", 5, 0));
	CHECK_RC(dfs_setxattr(dfs, file, "user.x", "value", 5, XATTR_CREATE), EEXIST);
	size = 0;
	OK(dfs_getxattr(dfs, file, "user.x", NULL, &size));
	CHECK(size == 5);
	size = 3;
	CHECK_RC(dfs_getxattr(dfs, file, "user.x", text, &size), ERANGE);
	size = sizeof(text);
	OK(dfs_listxattr(dfs, file, text, &size));
	CHECK(size == 7 && strcmp(text, "user.x") == 0);
	OK(dfs_removexattr(dfs, file, "user.x"));
	size = sizeof(text);
	CHECK_RC(dfs_getxattr(dfs, file, "user.x", text, &size), ENODATA);
	OK(dfs_release(file));

	OK(dfs_open(dfs, NULL, "b", S_IFREG | 0640, O_RDWR | O_CREAT, 0, 0, NULL, &file));
	OK(dfs_exchange(dfs, NULL, "a", NULL, "b"));
	OK(dfs_move(dfs, NULL, "a", NULL, "b", &gone));
	CHECK(gone.lo == oid.lo && gone.hi == oid.hi);
	OK(dfs_release(file));
	OK(dfs_remove(dfs, NULL, "b", false, NULL));
	OK(dfs_remove(dfs, NULL, "l", false, NULL));
}

/* What is wrong is told, and nothing is touched. */
static void
refusals(daos_handle_t poh, daos_handle_t coh, dfs_t *dfs)
{
	dfs_obj_t *file, *none;
	dfs_t *reader;
	d_sg_list_t sgl;
	d_iov_t iov;
	daos_size_t size;
	struct stat st;
	char byte = 0, longest[300];

	CHECK_RC(dfs_mount(poh, coh, O_RDWR, NULL), EINVAL);
	CHECK_RC(dfs_mount(DAOS_HDL_INVAL, coh, O_RDWR, &reader), EINVAL);
	CHECK_RC(dfs_umount(NULL), EINVAL);
	CHECK_RC(dfs_lookup(dfs, "nothere", O_RDONLY, &none, NULL, NULL), EINVAL);
	CHECK_RC(dfs_lookup(dfs, "/nothere", O_RDONLY, &none, NULL, NULL), ENOENT);
	CHECK_RC(dfs_lookup(dfs, NULL, O_RDONLY, &none, NULL, NULL), EINVAL);
	CHECK_RC(dfs_lookup(NULL, "/", O_RDONLY, &none, NULL, NULL), EINVAL);
	CHECK_RC(dfs_open(dfs, NULL, "x", S_IFREG | 0600, O_RDWR | O_CREAT | O_APPEND, 0, 0, NULL, &none), ENOTSUP);
	CHECK_RC(dfs_open(dfs, NULL, "x/y", S_IFREG | 0600, O_RDWR | O_CREAT, 0, 0, NULL, &none), EINVAL);
	CHECK_RC(dfs_open(dfs, NULL, "x", S_IFREG | 0600, O_RDWR | O_CREAT, 12345, 0, NULL, &none), EINVAL);
	CHECK_RC(dfs_open(dfs, NULL, "x", 0600, O_RDWR | O_CREAT, 0, 0, NULL, &none), EINVAL);
	CHECK_RC(dfs_open(dfs, NULL, "x", S_IFLNK, O_RDWR | O_CREAT, 0, 0, NULL, &none), EINVAL);
	memset(longest, 'n', sizeof(longest));
	longest[sizeof(longest) - 1] = 0;
	CHECK_RC(dfs_mkdir(dfs, NULL, longest, 0755, 0), ENAMETOOLONG);
	CHECK_RC(dfs_open(dfs, NULL, "mpi", S_IFREG | 0600, O_RDWR, 0, 0, NULL, &none), EISDIR);

	OK(dfs_open(dfs, NULL, "x", S_IFREG | 0600, O_RDWR | O_CREAT, 0, 0, NULL, &file));
	CHECK_RC(dfs_mkdir(dfs, file, "y", 0755, 0), ENOTDIR);
	list_of(&sgl, &iov, &byte, 1);
	CHECK_RC(dfs_read(dfs, file, &sgl, 0, NULL, NULL), EINVAL);
	CHECK_RC(dfs_read(dfs, file, NULL, 0, &size, NULL), EINVAL);
	iov.iov_len = 2;
	CHECK_RC(dfs_write(dfs, file, &sgl, 0, NULL), EINVAL);
	iov.iov_len = 1;
	CHECK_RC(dfs_write(dfs, file, &sgl, ~0ULL - 1, NULL), EFBIG);
	OK(dfs_release(file));
	CHECK_RC(dfs_ostat(dfs, file, &st), EINVAL);

	OK(dfs_mount(poh, coh, O_RDONLY, &reader));
	CHECK_RC(dfs_mkdir(reader, NULL, "no", 0755, 0), EPERM);
	CHECK_RC(dfs_lookup(reader, "/x", O_RDWR, &file, NULL, NULL), EPERM);
	OK(dfs_lookup(reader, "/x", O_RDONLY, &file, NULL, NULL));
	CHECK_RC(dfs_write(dfs, file, &sgl, 0, NULL), EPERM);
	OK(dfs_release(file));
	CHECK_RC(daos_cont_close(coh, NULL), -DER_BUSY);
	OK(dfs_umount(reader));
	CHECK_RC(dfs_umount(reader), EINVAL);
	OK(dfs_remove(dfs, NULL, "x", false, NULL));
}

static void
by_paths(daos_handle_t poh, daos_handle_t coh)
{
	dfs_sys_t *sys;
	dfs_t *base;
	dfs_obj_t *file;
	DIR *dir;
	struct dirent *entry;
	struct stat st;
	char text[32] = "content";
	daos_size_t size = 7;
	int names = 0;

	OK(dfs_sys_mount(poh, coh, O_RDWR, 0, &sys));
	OK(dfs_sys2base(sys, &base));
	OK(dfs_sys_mkdir_p(sys, "/p/q/r", 0755, 0));
	OK(dfs_sys_mkdir_p(sys, "/p/q/r/", 0755, 0));
	OK(dfs_sys_open(sys, "/p/q/f", S_IFREG | 0644, O_RDWR | O_CREAT, 0, 0, NULL, &file));
	OK(dfs_sys_write(sys, file, text, 0, &size, NULL));
	size = sizeof(text);
	OK(dfs_sys_read(sys, file, text, 0, &size, NULL));
	CHECK(size == 7);
	OK(dfs_sys_close(file));
	OK(dfs_sys_symlink(sys, "../q", "/p/q/back"));
	OK(dfs_sys_stat(sys, "/p/q/back/f", 0, &st));
	CHECK(st.st_size == 7);
	size = sizeof(text);
	OK(dfs_sys_readlink(sys, "/p/q/back", text, &size));
	CHECK(size == 5);
	OK(dfs_sys_opendir(sys, "/p/q", 0, &dir));
	for (;;) {
		OK(dfs_sys_readdir(sys, dir, &entry));
		if (entry == NULL)
			break;
		names++;
	}
	CHECK(names == 3);
	OK(dfs_sys_closedir(dir));
	OK(dfs_sys_chmod(sys, "/p/q/f", 0600));
	OK(dfs_sys_utimens(sys, "/p/q/f", NULL, 0));
	OK(dfs_sys_setxattr(sys, "/p/q/f", "user.k", "v", 1, 0, 0));
	OK(dfs_sys_access(sys, "/p/q/f", R_OK, 0));
	CHECK_RC(dfs_sys_remove_type(sys, "/p/q/f", false, S_IFDIR, NULL), ENOTDIR);
	OK(dfs_sys_set_prefix(sys, "/mnt"));
	OK(dfs_sys_remove(sys, "/mnt/p", true, NULL));
	CHECK_RC(dfs_sys_stat(sys, "/p", 0, &st), EINVAL);
	OK(dfs_sys_umount(sys));
	CHECK_RC(dfs_sys_umount(sys), EINVAL);
}

static void
by_names(char *pool)
{
	dfs_t *dfs, *shared;
	dfs_attr_t attr = {.da_chunk_size = 1 << 18}, told;
	d_iov_t glob = {0};
	dfs_obj_t *file;
	struct duns_attr_t duns = {0};
	char path[256];

	OK(dfs_init());
	CHECK_RC(dfs_connect(pool, NULL, "c-dfs-names", O_RDWR, &attr, &dfs), ENOENT);
	OK(dfs_connect(pool, NULL, "c-dfs-names", O_RDWR | O_CREAT, &attr, &dfs));
	OK(dfs_query(dfs, &told));
	CHECK(told.da_chunk_size == 1 << 18);
	OK(dfs_open(dfs, NULL, "f", S_IFREG | 0644, O_RDWR | O_CREAT, 0, 0, NULL, &file));
	OK(dfs_local2global_all(dfs, &glob));
	glob.iov_buf = malloc(glob.iov_buf_len);
	OK(dfs_local2global_all(dfs, &glob));
	OK(dfs_global2local_all(0, glob, &shared));
	free(glob.iov_buf);
	OK(dfs_disconnect(shared));
	OK(dfs_mkdir(dfs, NULL, "still", 0755, 0));
	OK(dfs_disconnect(dfs));
	CHECK_RC(dfs_release(file), EINVAL);
	snprintf(path, sizeof(path), "daos://%s/c-dfs-names/a/b", pool);
	OK(duns_resolve_path(path, &duns));
	CHECK(strcmp(duns.da_pool, pool) == 0 && strcmp(duns.da_cont, "c-dfs-names") == 0);
	CHECK(strcmp(duns.da_rel_path, "/a/b") == 0);
	duns_destroy_attr(&duns);
	CHECK_RC(duns_resolve_path("/", &duns), ENODATA);
	OK(dfs_destroy(pool, NULL, "c-dfs-names", 0, NULL));
	OK(dfs_fini());
}

int
main(int argc, char **argv)
{
	daos_handle_t poh, coh;
	dfs_t *dfs;
	uuid_t uuid;

	CHECK(argc == 2);
	OK(daos_init());
	OK(daos_pool_connect(argv[1], NULL, DAOS_PC_RW, &poh, NULL, NULL));
	OK(dfs_cont_create_with_label(poh, "c-dfs", NULL, &uuid, &coh, &dfs));
	as_fio(dfs);
	as_romio(poh, coh, dfs);
	listings(dfs);
	names_and_attributes(dfs);
	refusals(poh, coh, dfs);
	by_paths(poh, coh);
	OK(dfs_umount(dfs));
	by_names(argv[1]);
	return finish("c-dfs", poh, coh);
}
