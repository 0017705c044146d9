// Package grammar is that of the rules of netstate.Filter and netstate.Hook: one rule a line, which is perhaps the word for a view,
// some matches, perhaps a counter, and one end. A packet has to fit all matches.
//
//	backwards                 the rule is about the packet as if it went the other way
//	errors                    the rule is about the connection that an ICMP error is about: saddr is who began it, daddr who answers
//
//	new                       no answer has been seen yet in the packet's connection
//	ct reply established      an answer in a connection
//	ct related                of a connection that another one announced, or an ICMP error about one
//	iifname NAME              came in through a device; oifname: goes out
//	saddr @SET                its source address is in a set; daddr: its destination
//	saddr PREFIX              or in a prefix
//	saddr . daddr @SET        both addresses are in a set of pairs
//	daddr . proto . port @SET its destination address, protocol and destination port are in a set
//	from . saddr @SET         of errors: who sends the error, and who began the connection, are in a set of pairs; from . daddr
//	proto N                   of a transport protocol
//	tcp dport N, N-M, @SET    to a port, or to one of some; udp, sctp
//	tcp without syn           of TCP, and not the first of a connection
//	icmpv6 N, N-M             of an ICMPv6 type, or one of some
//	mark without BITS         its mark has none of some bits
//	mark set BITS             an end that decides nothing, but sets bits of its mark; mark clear
//	log NAME                  an end that decides nothing, but tells netstate.LogGroup of some packets, with a name
//	accept, drop, return      ends
//	reset                     an end that drops, and answers TCP with a reset
//	jump CHAIN, goto CHAIN    ends: another chain decides
//	saddr vmap @MAP           an end where the map has the address: the map's verdict; daddr
//
// Rules about frames have other matches:
//
//	iifgroup N                  came in through a device of a group; oifgroup: goes on through one
//	iifname @SET                came in through one of some devices
//	ether type ip, ip6, arp     holds a packet of a protocol, and has no VLAN tag
//	iifname . ip saddr @SET     its device and its source address, if it holds IPv4, are in a set of pairs; ip6: IPv6
//	saddr PREFIX                its source address is in a prefix, if it holds a packet of that family; daddr
package grammar

import "strings"

// Clause is one piece of a rule.
type Clause struct {
	Words string // "saddr . daddr"
	Arg   string // "@self"; empty: such a clause has none
	End   bool   // of the rule
}

// Kind is what clauses of the same words are like.
type Kind struct{ Arg, End bool }

var (
	plain    = Kind{}
	argument = Kind{Arg: true}
	end      = Kind{End: true}
	endWith  = Kind{Arg: true, End: true}
)

// kinds are all clauses, by their words.
var kinds = map[string]Kind{
	"new": plain, "ct reply established": plain, "ct related": plain, "tcp without syn": plain, "counter": plain,
	"iifname": argument, "oifname": argument, "saddr": argument, "daddr": argument, "saddr . daddr": argument,
	"daddr . proto . port": argument, "from . saddr": argument, "from . daddr": argument, "proto": argument,
	"tcp dport": argument, "udp dport": argument, "sctp dport": argument, "icmpv6": argument, "mark without": argument,
	"iifgroup": argument, "oifgroup": argument, "ether type": argument, "iifname . ip saddr": argument, "iifname . ip6 saddr": argument,
	"accept": end, "drop": end, "return": end, "reset": end,
	"mark set": endWith, "mark clear": endWith, "log": endWith, "jump": endWith, "goto": endWith, "saddr vmap": endWith, "daddr vmap": endWith,
}

// Of returns the kind of clauses with some words.
func Of(words string) Kind { return kinds[words] }

// longest is how many words a clause has at most, without its argument.
const longest = 5

// Next returns the longest clause with which the words of a rule begin, and the words behind it. There is none if it has no Words.
func Next(words []string) (c Clause, rest []string) {
	for n := min(len(words), longest); n > 0; n-- {
		name := strings.Join(words[:n], " ")
		kind, ok := kinds[name]
		switch {
		case ok && !kind.Arg:
			return Clause{Words: name, End: kind.End}, words[n:]
		case ok && n < len(words):
			return Clause{name, words[n], kind.End}, words[n+1:]
		}
	}
	return Clause{}, words
}
