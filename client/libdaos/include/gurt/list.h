/* SPDX-License-Identifier: Apache-2.0 */
/* Doubly linked lists whose links are inside their entries. */
#ifndef WEIR_GURT_LIST_H
#define WEIR_GURT_LIST_H

#include <stdbool.h>
#include <stddef.h>

#ifndef container_of
/* The structure of this type whose member ptr points to. */
#define container_of(ptr, type, member) ((type *)((char *)(ptr) - offsetof(type, member)))
#endif

/* A list's head, or the link of an entry. */
typedef struct d_list_head {
	struct d_list_head *next;
	struct d_list_head *prev;
} d_list_t;

/* Value and definition of an empty list. */
#define D_LIST_HEAD_INIT(name) {&(name), &(name)}
#define D_LIST_HEAD(name) d_list_t name = D_LIST_HEAD_INIT(name)

/* Makes a list empty, or a link one that is in no list. */
#define D_INIT_LIST_HEAD(head) \
	do { \
		(head)->next = (head); \
		(head)->prev = (head); \
	} while (0)

/* Whether a list has no entry. */
static inline bool
d_list_empty(const d_list_t *head)
{
	return head->next == head;
}

/* Puts a link between two neighbours. */
static inline void
d_list_link_between(d_list_t *link, d_list_t *before, d_list_t *behind)
{
	link->prev = before;
	link->next = behind;
	before->next = link;
	behind->prev = link;
}

/* Adds a link as the first one. */
static inline void
d_list_add(d_list_t *link, d_list_t *head)
{
	d_list_link_between(link, head, head->next);
}

/* Adds a link as the last one. */
static inline void
d_list_add_tail(d_list_t *link, d_list_t *head)
{
	d_list_link_between(link, head->prev, head);
}

/* Takes a link out of its list. */
static inline void
d_list_del(d_list_t *link)
{
	link->prev->next = link->next;
	link->next->prev = link->prev;
}

/* Takes a link out of its list and makes it one that is in none. */
static inline void
d_list_del_init(d_list_t *link)
{
	d_list_del(link);
	D_INIT_LIST_HEAD(link);
}

/* Moves a link to the front of a list. */
static inline void
d_list_move(d_list_t *link, d_list_t *head)
{
	d_list_del(link);
	d_list_add(link, head);
}

/* Moves a link to the end of a list. */
static inline void
d_list_move_tail(d_list_t *link, d_list_t *head)
{
	d_list_del(link);
	d_list_add_tail(link, head);
}

/* Puts all entries of a list at the front of another; the first one's head is undefined then. */
static inline void
d_list_splice(d_list_t *list, d_list_t *head)
{
	if (d_list_empty(list))
		return;
	list->prev->next = head->next;
	head->next->prev = list->prev;
	head->next = list->next;
	list->next->prev = head;
}

/* Puts all entries of a list at the front of another and makes the list empty. */
static inline void
d_list_splice_init(d_list_t *list, d_list_t *head)
{
	d_list_splice(list, head);
	D_INIT_LIST_HEAD(list);
}

/* The entry that a link is inside of. */
#define d_list_entry(ptr, type, member) container_of(ptr, type, member)

/* Visits all links; with _safe the visited one may be removed. */
#define d_list_for_each(pos, head) for ((pos) = (head)->next; (pos) != (head); (pos) = (pos)->next)
#define d_list_for_each_safe(pos, n, head) \
	for ((pos) = (head)->next, (n) = (pos)->next; (pos) != (head); (pos) = (n), (n) = (pos)->next)

/* Visits all entries; with _safe the visited one may be removed. */
#define d_list_for_each_entry(pos, head, member) \
	for ((pos) = d_list_entry((head)->next, __typeof__(*(pos)), member); &(pos)->member != (head); \
	     (pos) = d_list_entry((pos)->member.next, __typeof__(*(pos)), member))
#define d_list_for_each_entry_safe(pos, n, head, member) \
	for ((pos) = d_list_entry((head)->next, __typeof__(*(pos)), member), \
	     (n) = d_list_entry((pos)->member.next, __typeof__(*(pos)), member); \
	     &(pos)->member != (head); \
	     (pos) = (n), (n) = d_list_entry((n)->member.next, __typeof__(*(n)), member))

/* Takes the first entry out of a list; NULL when it is empty. */
#define d_list_pop_entry(head, type, member) \
	({ \
		type *d_list_popped = NULL; \
		if (!d_list_empty(head)) { \
			d_list_popped = d_list_entry((head)->next, type, member); \
			d_list_del_init((head)->next); \
		} \
		d_list_popped; \
	})

#endif
