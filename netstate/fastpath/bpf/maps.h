/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What the agent tells the programs, and what they tell it. */
#pragma once
#include "kernel.h"

/* What becomes of a packet. The names are those that users see. The first three are the modes of shortcuts; what follows
 * them are the reasons why a packet is left to the kernel. */
enum result {
	encap,
	vtep,
	direct,
	not_ours,  /* not IP, not sent to this host, or with a VLAN tag */
	no_peer,   /* the other end is no pod of a peer */
	no_pod,    /* this end is no pod of this node */
	wrong_mac, /* the pod has another MAC address */
	wrong_device, /* a peer's packets come in elsewhere */
	paused,
	deadline, /* the agent is dead */
	options,  /* of IPv4 */
	fragment,
	protocol, /* neither TCP nor UDP */
	ttl,
	flags, /* TCP's SYN, FIN or RST */
	length,
	no_ct, /* conntrack does not know the flow */
	nat,
	state, /* conntrack has not seen enough of the flow, or its end */
	mark,
	gone, /* the pod's device */
	refreshed, /* not a result: conntrack entries whose time was extended */
	failed,	   /* not a result: functions of the kernel that failed */
	results,
};

enum program { from_pod_program, to_pod_program, programs };

/* Of IPv4: ::ffff:a.b.c.d. */
struct address {
	u32 words[4];
};

struct shortcut_key {
	u32 bits;
	struct address dst;
};

struct shortcut {
	enum result mode; /* one of the first three */
	u32 dev, from; /* indices */
	u32 mtu;
	struct address local, outer;
	u32 vni;
	u16 port;
	u8 src[6], mac[6];
	u16 zero;
};

struct pod {
	u32 dev;
	u8 mac[6], bridge[6];
};

/* netstate.Switch, and what the kernel does not tell a program. */
struct settings {
	u32 skip_mark;
	u32 tcp_seconds, udp_seconds; /* the timeouts of flows */
	u32 hz;
	u32 port_min, port_max; /* of sources */
};

struct count {
	u64 packets, bytes;
};

enum { deadline_clock, paused_clock, clocks }; /* in nanoseconds of CLOCK_MONOTONIC */

struct {
	MAP_TYPE(LPM_TRIE);
	MAP_FLAGS(NO_PREALLOC);
	MAP_ENTRIES(65536);
	MAP_KEY(struct shortcut_key);
	MAP_VALUE(struct shortcut);
} shortcuts SEC(".maps");

struct {
	MAP_TYPE(HASH);
	MAP_FLAGS(NO_PREALLOC);
	MAP_ENTRIES(16384);
	MAP_KEY(struct address);
	MAP_VALUE(struct pod);
} pods SEC(".maps");

struct {
	MAP_TYPE(ARRAY);
	MAP_ENTRIES(1);
	MAP_KEY(u32);
	MAP_VALUE(struct settings);
} settings SEC(".maps");

struct {
	MAP_TYPE(ARRAY);
	MAP_ENTRIES(clocks);
	MAP_KEY(u32);
	MAP_VALUE(u64);
} clock SEC(".maps");

struct {
	MAP_TYPE(PERCPU_ARRAY);
	MAP_ENTRIES(programs *results);
	MAP_KEY(u32);
	MAP_VALUE(struct count);
} counts SEC(".maps");

static inline void tally(struct __sk_buff *skb, enum program program, enum result result)
{
	u32 key = program * results + result;
	struct count *c = bpf_map_lookup_elem(&counts, &key);

	if (c) {
		c->packets++;
		c->bytes += skb->len;
	}
}

/* off returns why all packets are left to the kernel now, or 0. */
static inline enum result off(void)
{
	u64 now = bpf_ktime_get_coarse_ns();
	u32 key = deadline_clock;
	u64 *time = bpf_map_lookup_elem(&clock, &key);

	if (!time || *time < now)
		return deadline;
	key = paused_clock;
	time = bpf_map_lookup_elem(&clock, &key);
	if (!time || *time > now)
		return paused;
	return 0;
}
