/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What the programs use of the kernel. Offsets in structs marked with preserve_access_index are those of the running
 * kernel: the loader looks them up. */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;

#define SEC(name) __attribute__((section(name), used))
#define inline inline __attribute__((always_inline))
#define htons(x) __builtin_bswap16(x)
#define htonl(x) __builtin_bswap32(x)
#define copy(to, from, size) __builtin_memcpy(to, from, size)

/* How a map is declared, for the loader. */
#define MAP_TYPE(t) int(*type)[t]
#define MAP_FLAGS(f) int(*map_flags)[f]
#define MAP_ENTRIES(n) int(*max_entries)[n]
#define MAP_KEY(t) t *key
#define MAP_VALUE(t) t *value
enum { HASH = 1, ARRAY = 2, PERCPU_ARRAY = 6, LPM_TRIE = 11, NO_PREALLOC = 1 };

enum { ETH_P_IP = 0x0800, ETH_P_IPV6 = 0x86dd, AF_INET = 2, AF_INET6 = 10, TCP = 6, UDP = 17, PACKET_HOST = 0 };
enum { TC_ACT_UNSPEC = -1, TC_ACT_SHOT = 2 };

struct __sk_buff {
	u32 len;
	u32 pkt_type;
	u32 mark;
	u32 queue_mapping;
	u32 protocol;
	u32 vlan_present;
	u32 vlan_tci;
	u32 vlan_proto;
	u32 priority;
	u32 ingress_ifindex;
	u32 ifindex;
	u32 tc_index;
	u32 cb[5];
	u32 hash;
	u32 tc_classid;
	u32 data;
	u32 data_end;
	u32 napi_id;
	u32 family;
	u32 remote_ip4;
	u32 local_ip4;
	u32 remote_ip6[4];
	u32 local_ip6[4];
	u32 remote_port;
	u32 local_port;
	u32 data_meta;
	u64 flow_keys;
	u64 tstamp;
	u32 wire_len;
	u32 gso_segs;
	u64 sk;
	u32 gso_size;
};

struct bpf_redir_neigh {
	u32 nh_family;
	u32 nh[4];
};

/* linux/bpf.h: the flags of bpf_skb_adjust_room for an IPv4 UDP tunnel of Ethernet frames. FIXED_GSO: segments keep
 * their size. NO_CSUM_RESET: checksums that a device has found right stay so. */
#define ENCAPSULATION (1ULL << 0 | 1ULL << 1 | 1ULL << 4 | 1ULL << 5 | 1ULL << 6 | 14ULL << 56)
enum { ADJ_ROOM_MAC = 1 };

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static u32 (*bpf_get_prandom_u32)(void) = (void *)7;
static long (*bpf_skb_store_bytes)(struct __sk_buff *, u32 offset, const void *from, u32 len, u64 flags) = (void *)9;
static long (*bpf_redirect)(u32 ifindex, u64 flags) = (void *)23;
static u32 (*bpf_get_hash_recalc)(struct __sk_buff *) = (void *)34;
static long (*bpf_skb_pull_data)(struct __sk_buff *, u32 len) = (void *)39;
static s64 (*bpf_csum_update)(struct __sk_buff *, u32 csum) = (void *)40;
static long (*bpf_skb_adjust_room)(struct __sk_buff *, s32 len_diff, u32 mode, u64 flags) = (void *)50;
static u64 (*bpf_jiffies64)(void) = (void *)118;
static long (*bpf_redirect_neigh)(u32 ifindex, struct bpf_redir_neigh *, int plen, u64 flags) = (void *)152;
static long (*bpf_redirect_peer)(u32 ifindex, u64 flags) = (void *)155;
static u64 (*bpf_ktime_get_coarse_ns)(void) = (void *)160;
static long (*bpf_check_mtu)(void *ctx, u32 ifindex, u32 *mtu_len, s32 len_diff, u64 flags) = (void *)163;

/* Conntrack. */
struct ip_ct_tcp {
	u8 state;
} __attribute__((preserve_access_index));

union nf_conntrack_proto {
	struct ip_ct_tcp tcp;
} __attribute__((preserve_access_index));

struct nf_conn {
	u32 timeout;
	unsigned long status;
	u32 mark;
	union nf_conntrack_proto proto;
} __attribute__((preserve_access_index));

#define has_field(f) __builtin_preserve_field_info(f, 2)

struct bpf_sock_tuple {
	union {
		struct {
			u32 saddr, daddr;
			u16 sport, dport;
		} ipv4;
		struct {
			u32 saddr[4], daddr[4];
			u16 sport, dport;
		} ipv6;
	};
};

struct bpf_ct_opts {
	s32 netns_id;
	s32 error;
	u8 l4proto;
	u8 dir;
	u8 reserved[2];
};

extern struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *, struct bpf_sock_tuple *, u32 tuple__sz,
	struct bpf_ct_opts *, u32 opts__sz) SEC(".ksyms");
extern void bpf_ct_release(struct nf_conn *) SEC(".ksyms");
extern int bpf_ct_change_timeout(struct nf_conn *, u32 milliseconds) SEC(".ksyms");
