/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The fast path of pods' packets. What a program does not know for sure it leaves to the kernel, untouched. */
#include "conntrack.h"

char license_terms[] SEC("license") = "Dual BSD/GPL";

/* What the encapsulation puts between the Ethernet header and the packet, and what hop changes of that. */
struct outer {
	struct ipv4 ip;
	struct udp udp;
	u8 vxlan[8];
	struct ethernet inner;
	u8 network[sizeof(union network)]; /* no compiler puts a gap before it */
};
enum { ROOM = 50 };

static inline u16 header_checksum(struct ipv4 *ip)
{
	u16 *half = (u16 *)ip;
	u32 sum = 0;

#pragma unroll
	for (int i = 0; i < (int)sizeof(*ip) / 2; i++)
		sum += half[i];
	sum = (sum & 0xffff) + (sum >> 16);
	return ~(sum + (sum >> 16));
}

/* source_port is udp_flow_src_port of the kernel: packets of one flow take one of several equal ways. */
static inline u16 source_port(struct __sk_buff *skb)
{
	u32 key = 0, hash = bpf_get_hash_recalc(skb);
	struct settings *s = bpf_map_lookup_elem(&settings, &key);

	if (!s)
		return 0;
	hash ^= hash << 16;
	return htons((u16)(((u64)hash * (s->port_max - s->port_min) >> 32) + s->port_min));
}

/* ecn returns what RFC 6040 wants of an outer header. */
static inline u8 ecn(struct packet *p)
{
	u8 inner = p->v6 ? htonl(p->network.v6.version) >> 20 & 3 : p->network.v4.tos & 3;

	return inner == 3 ? 2 : inner;
}

static inline int send_encapsulated(struct __sk_buff *skb, struct packet *p, struct shortcut *s)
{
	struct outer o = {};
	u32 vni = htonl(s->vni << 8);
	u16 sport = source_port(skb), room = skb->len - sizeof(struct ethernet) + ROOM;

	/* This comes before anything else is altered, because it fails where the packet is in a tunnel already. */
	if (bpf_skb_adjust_room(skb, ROOM, ADJ_ROOM_MAC, ENCAPSULATION))
		return TC_ACT_UNSPEC;
	o.ip.version = 0x45;
	o.ip.tos = ecn(p);
	o.ip.length = htons(room);
	o.ip.id = bpf_get_prandom_u32(); /* fragments of different packets must not mix */
	o.ip.ttl = 64;
	o.ip.protocol = UDP;
	o.ip.src = s->local.words[3];
	o.ip.dst = s->outer.words[3];
	o.ip.checksum = header_checksum(&o.ip);
	o.udp.src = sport;
	o.udp.dst = htons(s->port);
	o.udp.length = htons(room - sizeof(o.ip));
	o.vxlan[0] = 0x08; /* there is a VNI */
	copy(o.vxlan + 4, &vni, 4);
	copy(o.inner.dst, s->mac, 6);
	copy(o.inner.src, s->src, 6);
	o.inner.proto = p->v6 ? htons(ETH_P_IPV6) : htons(ETH_P_IP);
	hop(p);
	copy(o.network, &p->network, sizeof(o.network));
	if (bpf_skb_store_bytes(skb, sizeof(struct ethernet), &o, p->v6 ? ROOM + V6_CHANGES : ROOM + V4_CHANGES, 0))
		return TC_ACT_SHOT;
	return bpf_redirect_neigh(s->dev, 0, 0, 0);
}

/* rewrite writes the Ethernet header and what hop changes. */
static inline long rewrite(struct __sk_buff *skb, struct packet *p, u8 *dst, u8 *src)
{
	struct {
		struct ethernet ethernet;
		union network network;
	} __attribute__((packed)) front = {};

	copy(front.ethernet.dst, dst, 6);
	copy(front.ethernet.src, src, 6);
	front.ethernet.proto = p->v6 ? htons(ETH_P_IPV6) : htons(ETH_P_IP);
	hop(p);
	front.network = p->network;
	if (p->v6 && !bpf_skb_store_bytes(skb, 0, &front, sizeof(struct ethernet) + V6_CHANGES, 0)) {
		/* Where a device has summed up the packet, the sum is one less now. Elsewhere this does nothing. In IPv4 the
		 * header's checksum makes up for it. */
		bpf_csum_update(skb, ~(u32)htons(1));
		return 0;
	}
	return p->v6 || bpf_skb_store_bytes(skb, 0, &front, sizeof(struct ethernet) + V4_CHANGES, 0);
}

static inline int send_through_vtep(struct __sk_buff *skb, struct packet *p, struct shortcut *s)
{
	if (rewrite(skb, p, s->mac, s->src))
		return TC_ACT_UNSPEC;
	return bpf_redirect(s->dev, 0);
}

static inline int send_direct(struct __sk_buff *skb, struct packet *p, struct shortcut *s)
{
	struct bpf_redir_neigh hop = {};

	if (rewrite(skb, p, s->mac, s->src)) /* the kernel writes the MAC addresses */
		return TC_ACT_UNSPEC;
	if (p->v6) {
		hop.nh_family = AF_INET6;
		copy(hop.nh, &s->outer, sizeof(s->outer));
	} else {
		hop.nh_family = AF_INET;
		hop.nh[0] = s->outer.words[3];
	}
	return bpf_redirect_neigh(s->dev, &hop, sizeof(hop), 0);
}

static inline struct shortcut *shortcut(struct address *a)
{
	struct shortcut_key key = {.bits = 128, .dst = *a};

	return bpf_map_lookup_elem(&shortcuts, &key);
}

static inline int same_mac(u8 *a, u8 *b)
{
	int differ = 0;

#pragma unroll
	for (int i = 0; i < 6; i++)
		differ |= a[i] ^ b[i];
	return !differ;
}

/* may_send returns 0 if a packet of a pod may take the shortcut. */
static inline enum result may_send(struct __sk_buff *skb, struct packet *p, struct shortcut *s)
{
	struct pod *pod = bpf_map_lookup_elem(&pods, &p->src);
	enum result r;

	if (!pod)
		return no_pod;
	if (!same_mac(pod->mac, p->sender))
		return wrong_mac;
	r = off();
	if (!r)
		r = headers(skb, p);
	if (r)
		return r;
	if (size(skb, p) > s->mtu || skb->len + ROOM - sizeof(struct ethernet) > 0xffff)
		return length;
	return known(skb, p, from_pod_program);
}

/* At the bridge, where pods' packets come in for this host to forward. */
SEC("tc")
int from_pod(struct __sk_buff *skb)
{
	struct shortcut *s;
	struct packet p = {};
	enum result r = addresses(skb, &p);
	int action;

	if (!r) {
		s = shortcut(&p.dst);
		r = s ? may_send(skb, &p, s) : no_peer;
	}
	if (r || !s) {
		tally(skb, from_pod_program, r);
		return TC_ACT_UNSPEC;
	}
	u32 mode = s->mode;

	if (mode == encap)
		action = send_encapsulated(skb, &p, s);
	else if (mode == vtep)
		action = send_through_vtep(skb, &p, s);
	else
		action = send_direct(skb, &p, s);
	if (action == TC_ACT_UNSPEC || action == TC_ACT_SHOT || mode > direct)
		mode = failed;
	tally(skb, from_pod_program, mode);
	return action;
}

/* may_receive returns 0 if a packet may go straight into a pod. */
static inline enum result may_receive(struct __sk_buff *skb, struct packet *p, struct pod *pod, struct shortcut *s)
{
	enum result r;
	u32 mtu = 0;
	long checked;

	if (s->from != skb->ifindex)
		return wrong_device;
	r = off();
	if (!r)
		r = headers(skb, p);
	if (r)
		return r;
	/* A packet for a device that is gone would be lost. */
	checked = bpf_check_mtu(skb, pod->dev, &mtu, 0, 0);
	if (checked < 0)
		return gone;
	if (checked || size(skb, p) > mtu)
		return length;
	return known(skb, p, to_pod_program);
}

/* At the VXLAN device and the underlay, where peers' packets come in. */
SEC("tc")
int to_pod(struct __sk_buff *skb)
{
	struct packet p = {};
	struct shortcut *s = 0;
	struct pod *pod = 0;
	enum result r = addresses(skb, &p);

	if (!r) {
		pod = bpf_map_lookup_elem(&pods, &p.dst);
		r = no_pod;
	}
	if (pod) {
		s = shortcut(&p.src);
		r = s ? may_receive(skb, &p, pod, s) : no_peer;
	}
	if (r || !s || !pod) {
		tally(skb, to_pod_program, r);
		return TC_ACT_UNSPEC;
	}
	if (rewrite(skb, &p, pod->mac, pod->bridge)) {
		tally(skb, to_pod_program, failed);
		return TC_ACT_UNSPEC;
	}
	skb->mark = 0;
	tally(skb, to_pod_program, s->mode <= direct ? s->mode : failed);
	return bpf_redirect_peer(pod->dev, 0);
}
