/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Whether conntrack knows a flow well enough that the kernel's rules need not see its packets. */
#pragma once
#include "packet.h"

/* linux/netfilter/nf_conntrack_common.h: enum ip_conntrack_status, and nf_conntrack_tcp.h: enum tcp_conntrack. */
enum {
	SEEN_REPLY = 1 << 1,
	ASSURED = 1 << 2,
	CONFIRMED = 1 << 3,
	SRC_NAT = 1 << 4,
	DST_NAT = 1 << 5,
	SEQ_ADJUST = 1 << 6,
	DYING = 1 << 9,
	HELPER = 1 << 13,
	OFFLOAD = 1 << 14,
	KNOWN = SEEN_REPLY | ASSURED | CONFIRMED,
	TCP_ESTABLISHED = 3,
};

static inline struct nf_conn *lookup(struct __sk_buff *skb, struct packet *p)
{
	struct bpf_ct_opts opts = {.netns_id = -1, .l4proto = p->protocol};
	struct bpf_sock_tuple t = {};

	if (p->v6) {
		copy(t.ipv6.saddr, &p->src, sizeof(p->src));
		copy(t.ipv6.daddr, &p->dst, sizeof(p->dst));
		t.ipv6.sport = p->sport;
		t.ipv6.dport = p->dport;
		return bpf_skb_ct_lookup(skb, &t, sizeof(t.ipv6), &opts, sizeof(opts));
	}
	t.ipv4.saddr = p->src.words[3];
	t.ipv4.daddr = p->dst.words[3];
	t.ipv4.sport = p->sport;
	t.ipv4.dport = p->dport;
	return bpf_skb_ct_lookup(skb, &t, sizeof(t.ipv4), &opts, sizeof(opts));
}

static inline enum result judge(struct nf_conn *ct, struct packet *p, struct settings *s)
{
	unsigned long status = ct->status;

	if (status & (SRC_NAT | DST_NAT))
		return nat;
	if ((status & KNOWN) != KNOWN || status & (SEQ_ADJUST | DYING | HELPER | OFFLOAD))
		return state;
	if (p->protocol == TCP && ct->proto.tcp.state != TCP_ESTABLISHED)
		return state;
	if (has_field(ct->mark) && ct->mark & s->skip_mark)
		return mark;
	return 0;
}

/* refresh gives the entry its whole time again when an eighth of it has gone, as the kernel does with each packet. */
static inline void refresh(struct __sk_buff *skb, struct nf_conn *ct, struct packet *p, struct settings *s,
	enum program program)
{
	u32 seconds = p->protocol == TCP ? s->tcp_seconds : s->udp_seconds;
	s32 left = ct->timeout - (u32)bpf_jiffies64();

	if (left >= (s32)(seconds * s->hz / 8 * 7))
		return;
	tally(skb, program, bpf_ct_change_timeout(ct, seconds * 1000) ? failed : refreshed);
}

/* known returns 0 if the flow need not be seen by the kernel's rules, else the reason why it must be. */
static inline enum result known(struct __sk_buff *skb, struct packet *p, enum program program)
{
	u32 key = 0;
	struct settings *s = bpf_map_lookup_elem(&settings, &key);
	struct nf_conn *ct;
	enum result r;

	if (!s || !s->hz)
		return paused;
	ct = lookup(skb, p);
	if (!ct)
		return no_ct;
	r = judge(ct, p, s);
	if (!r)
		refresh(skb, ct, p, s, program);
	bpf_ct_release(ct);
	return r;
}
