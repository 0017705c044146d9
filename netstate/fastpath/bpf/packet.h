/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Reading a packet, and rewriting its front. */
#pragma once
#include "maps.h"

struct ethernet {
	u8 dst[6], src[6];
	u16 proto;
} __attribute__((packed));

struct ipv4 {
	u8 version, tos;
	u16 length, id, fragment;
	u8 ttl, protocol;
	u16 checksum;
	u32 src, dst;
};

struct ipv6 {
	u32 version;
	u16 length;
	u8 protocol, ttl;
	struct address src, dst;
};

struct udp {
	u16 src, dst, length, checksum;
};

struct tcp {
	u16 src, dst;
	u32 seq, ack;
	u8 offset, flags;
};

/* As much of the IP header as a router changes. */
union network {
	struct {
		u8 version, tos;
		u16 length, id, fragment;
		u8 ttl, protocol;
		u16 checksum;
	} v4;
	struct {
		u32 version;
		u16 length;
		u8 protocol, ttl;
	} v6;
};
enum { V4_CHANGES = 12, V6_CHANGES = 8, HEADERS = 74 };

struct packet {
	struct address src, dst;
	union network network;
	u16 sport, dport;
	u16 headers; /* bytes of the IP header and the transport header */
	u8 v6, protocol;
	u8 sender[6]; /* MAC address */
};

static inline void mapped(struct address *a, u32 v4)
{
	a->words[0] = a->words[1] = 0;
	a->words[2] = htonl(0xffff);
	a->words[3] = v4;
}

/* addresses reads who sends to whom. It returns 0, or the reason to leave the packet to the kernel. */
static inline enum result addresses(struct __sk_buff *skb, struct packet *p)
{
	void *data, *end;
	struct ethernet *e;

	if (skb->pkt_type != PACKET_HOST || skb->vlan_present)
		return not_ours;
	if (skb->data_end - skb->data < HEADERS && skb->data_end - skb->data < skb->len)
		bpf_skb_pull_data(skb, skb->len < HEADERS ? skb->len : HEADERS);
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	e = data;
	if (data + sizeof(*e) + sizeof(struct ipv4) > end)
		return not_ours;
	copy(p->sender, e->src, 6);
	if (e->proto == htons(ETH_P_IP)) {
		struct ipv4 *ip = data + sizeof(*e);

		p->v6 = 0;
		mapped(&p->src, ip->src);
		mapped(&p->dst, ip->dst);
		return 0;
	}
	if (e->proto == htons(ETH_P_IPV6) && data + sizeof(*e) + sizeof(struct ipv6) <= end) {
		struct ipv6 *ip = data + sizeof(*e);

		p->v6 = 1;
		p->src = ip->src;
		p->dst = ip->dst;
		return 0;
	}
	return not_ours;
}

/* transport reads the ports, at a given distance from the beginning. */
static inline enum result transport(struct packet *p, void *data, void *end, u32 at)
{
	struct udp *udp = data + at;
	struct tcp *tcp = data + at;

	if (p->protocol == UDP && (void *)(udp + 1) <= end) {
		p->sport = udp->src;
		p->dport = udp->dst;
		p->headers = at - sizeof(struct ethernet) + sizeof(*udp);
		return 0;
	}
	if (p->protocol != TCP || (void *)(tcp + 1) > end)
		return protocol;
	if (tcp->flags & 0x7) /* RST, SYN, FIN */
		return flags;
	p->sport = tcp->src;
	p->dport = tcp->dst;
	p->headers = at - sizeof(struct ethernet) + (tcp->offset >> 4) * 4;
	return 0;
}

/* headers reads the rest, after addresses. */
static inline enum result headers(struct __sk_buff *skb, struct packet *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	u32 at = sizeof(struct ethernet);

	if (p->v6) {
		struct ipv6 *ip = data + at;

		if ((void *)(ip + 1) > end)
			return not_ours;
		copy(&p->network, ip, V6_CHANGES);
		p->protocol = ip->protocol;
		if (ip->ttl <= 1)
			return ttl;
		return transport(p, data, end, at + sizeof(*ip));
	}
	struct ipv4 *ip = data + at;

	if ((void *)(ip + 1) > end)
		return not_ours;
	if (ip->version != 0x45)
		return options;
	if (ip->fragment & htons(0x3fff))
		return fragment;
	copy(&p->network, ip, V4_CHANGES);
	p->protocol = ip->protocol;
	if (ip->ttl <= 1)
		return ttl;
	return transport(p, data, end, at + sizeof(*ip));
}

/* size returns the bytes of the IP packet, or of the longest of those that it will become. */
static inline u32 size(struct __sk_buff *skb, struct packet *p)
{
	u32 segment = skb->gso_size;

	return segment ? p->headers + segment : skb->len - sizeof(struct ethernet);
}

/* hop makes the packet one hop older, in p: who calls it writes that into the packet. */
static inline void hop(struct packet *p)
{
	if (p->v6) {
		p->network.v6.ttl--;
		return;
	}
	u32 sum = p->network.v4.checksum + htons(0x0100);

	p->network.v4.checksum = sum + (sum >= 0xffff);
	p->network.v4.ttl--;
}
