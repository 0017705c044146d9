package kube

import (
	"net/netip"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// The numbers of the messages Node, NodeSpec, NodeStatus, ObjectMeta and what they have; see wire.go.
const (
	nodeMeta, nodeSpec, nodeStatus      = 1, 2, 3
	specPodCIDR, specPodCIDRs           = 1, 7
	statusConditions, statusAddresses   = 4, 5
	conditionType, conditionStatus      = 1, 2
	conditionReason, conditionMessage   = 5, 6
	addressType, addressText            = 1, 2
	metaName, metaUID, metaVersion      = 1, 5, 6
	metaCreated, metaAnnotations        = 8, 12
	timeSeconds, entryKey, entryContent = 1, 1, 2
)

const networkUnavailable, internalIP = "NetworkUnavailable", "InternalIP"

// node is what the store reads of a Node object.
type node struct {
	record
	version string // metadata.resourceVersion
	whole   bool   // it was read in full, and not its metadata only
}

// lean reads Nodes without what the store does not want.
type lean struct {
	prefix string // of the annotations to keep
	self   string // the node whose status is wanted
}

// node reads a message Node or PartialObjectMetadata.
func (d lean) node(data []byte) (*node, error) {
	n := &node{}
	var status []byte
	err := each(data, func(number protowire.Number, content []byte) error {
		switch number {
		case nodeMeta:
			return d.meta(content, n)
		case nodeSpec:
			n.whole = true
			return n.spec(content)
		case nodeStatus:
			status = content
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if n.name == d.self {
		return n, n.status(status)
	}
	n.choose = [2]string{}
	return n, nil
}

func (d lean) meta(data []byte, n *node) error {
	return each(data, func(number protowire.Number, content []byte) error {
		switch number {
		case metaName:
			n.name = string(content)
		case metaUID:
			n.uid = string(content)
		case metaVersion:
			n.version = string(content)
		case metaCreated:
			return n.born(content)
		case metaAnnotations:
			return d.annotation(content, n)
		}
		return nil
	})
}

// born reads a Time, whose seconds are the only number among the fields here.
func (n *node) born(data []byte) error {
	for len(data) > 0 {
		number, kind, size := protowire.ConsumeTag(data)
		if size < 0 {
			return protowire.ParseError(size)
		}
		data = data[size:]
		if number == timeSeconds && kind == protowire.VarintType {
			seconds, size := protowire.ConsumeVarint(data)
			n.created = time.Unix(int64(seconds), 0).UTC()
			return protowire.ParseError(min(size, 0))
		}
		if size = protowire.ConsumeFieldValue(number, kind, data); size < 0 {
			return protowire.ParseError(size)
		}
		data = data[size:]
	}
	return nil
}

func (d lean) annotation(data []byte, n *node) error {
	var to *string
	return each(data, func(number protowire.Number, content []byte) error {
		switch {
		case number == entryKey && len(content) > len(d.prefix) && string(content[:len(d.prefix)]) == d.prefix:
			to = n.noted(content[len(d.prefix):])
		case number == entryContent && to != nil:
			*to = string(content[:min(len(content), maxData+1)])
		}
		return nil
	})
}

// spec reads the podCIDRs; podCIDR is the first of them, and alone on clusters before 1.20.
func (n *node) spec(data []byte) error {
	first, all := "", ""
	err := each(data, func(number protowire.Number, content []byte) error {
		switch number {
		case specPodCIDR:
			first = string(content)
		case specPodCIDRs:
			if all != "" {
				all += ","
			}
			all += string(content)
		}
		return nil
	})
	n.podCIDRs = all
	if all == "" {
		n.podCIDRs = first
	}
	return err
}

func (n *node) status(data []byte) error {
	return each(data, func(number protowire.Number, content []byte) error {
		switch number {
		case statusConditions:
			return n.condition(content)
		case statusAddresses:
			return n.address(content)
		}
		return nil
	})
}

func (n *node) condition(data []byte) error {
	name, c := "", condition{}
	err := each(data, func(number protowire.Number, content []byte) error {
		switch number {
		case conditionType:
			name = string(content)
		case conditionStatus:
			c.status = string(content)
		case conditionReason:
			c.reason = string(content)
		case conditionMessage:
			c.message = string(content)
		}
		return nil
	})
	if name == networkUnavailable {
		n.network = c
	}
	return err
}

func (n *node) address(data []byte) error {
	name, text := "", ""
	err := each(data, func(number protowire.Number, content []byte) error {
		switch number {
		case addressType:
			name = string(content)
		case addressText:
			text = string(content)
		}
		return nil
	})
	if _, parsed := netip.ParseAddr(text); parsed == nil && name == internalIP {
		n.internal = strings.TrimPrefix(n.internal+","+text, ",")
	}
	return err
}
